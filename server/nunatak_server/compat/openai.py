"""OpenAI's `/v1/embeddings`, `/v1/models` and `/v1/moderations`.

The backbone is an embedding model. Tasks are no models here, because OpenAI's clients have no call
for the answers of tasks. The model of a moderation is a policy.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Field, JsonValue

from nunatak_contract.enums import ModerationCategory, PolicyMode, VerdictAction
from nunatak_contract.requests import Message, Some, Text
from nunatak_server.compat.decisions import NAMES
from nunatak_server.compat.translation import (
    Texts,
    base64_of,
    embed_texts,
    router_of,
    texts_of,
    usage_of,
)
from nunatak_server.decisions.decider import visible
from nunatak_server.errors import invalid_request
from nunatak_server.http.access import caller_of, request_id_of
from nunatak_server.http.endpoints import Routed, Unrouted, runtime_of
from nunatak_server.http.replies import reply, timing_headers
from nunatak_server.verdicts.calls import CallContent, judge_call
from nunatak_server.verdicts.rules import TextDecision


class EmbeddingsRequest(Message):
    """Texts to embed. Token ids are refused, because they would come from another tokenizer."""

    input: Text | Texts
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = Field(None, description="no effect, as in OpenAI's server")


class EmbeddingItem(Message):
    """One vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(Message):
    """The number of tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(Message):
    """One vector for each text, in order."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class ModelResponse(Message):
    """A model. Its time of creation is unknown, so `created` is 0."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class DecisionModel(Message):
    """A name of the model that answers typed questions; the first one lists the known questions."""

    name: str
    description: str
    release_date: str
    x_questions: list[dict[str, JsonValue]]


class ModelsResponse(Message):
    """The backbones in `data`, and what answers questions in `models`, as System One has it."""

    object: Literal["list"]
    data: list[ModelResponse]
    models: list[DecisionModel]


router = router_of("OpenAI")


@router.ask("/v1/embeddings", answer=EmbeddingsResponse)
async def embeddings(request: Request, handling: Unrouted, body: EmbeddingsRequest) -> Response:
    """Embed texts with the backbone: pooled, at length one."""
    backbone = runtime_of(request).backbones.named(body.model)
    width = backbone.config.hidden_width
    if body.dimensions not in {None, width}:
        raise invalid_request(
            f"dimensions must be {width} or absent, got {body.dimensions}: the backbone "
            "was not trained for shorter vectors"
        )
    texts = texts_of(body.input)
    found, headers = await embed_texts(request, handling, texts, backbone=backbone)
    encode = base64_of if body.encoding_format == "base64" else list[float]
    data = [
        {"object": "embedding", "index": index, "embedding": encode(vector)}
        for index, vector in enumerate(found.vectors)
    ]
    usage = usage_of(found.num_tokens)
    return reply(
        {"object": "list", "data": data, "model": backbone.name, "usage": usage}, headers=headers
    )


@router.read("/v1/models", answer=ModelsResponse)
async def models(request: Request) -> Response:
    """List the values of `model` for `/v1/embeddings`, and the questions that can be asked."""
    runtime, caller = runtime_of(request), caller_of(request.scope)
    data = [_card(it.name) for it in runtime.backbones]
    known = await runtime.facts.cards(caller.name)
    cards = [it for it in known.single if visible(it, caller.tasks)]
    questions = [
        {"card": it.reference, "task": it.document.task, **it.document.question.model_dump()}
        for it in cards
    ]
    dates = sorted(("1970-01-01", *(it.published_at.isoformat() for it in cards)))
    about = f"answers {len(questions)} questions by trained tasks; see x_questions"
    dated = {"description": about, "release_date": dates[-1][:10]}
    # The second name means the same model, so only the first one lists the questions.
    models = [
        {"name": name, **dated, "x_questions": questions if name == NAMES[0] else []}
        for name in NAMES
    ]
    return reply({"object": "list", "data": data, "models": models})


@router.read("/v1/models/{model:path}", answer=ModelResponse)
async def show_model(request: Request, model: str) -> Response:
    """Show a model."""
    return reply(_card(runtime_of(request).backbones.named(model).name))


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "nunatak"}


class ModerationsRequest(Message):
    """Texts for a policy, or the parts of one input."""

    input: Text | Texts | Some[dict[str, JsonValue]] = Field(
        description="parts such as `{type: text, text}` are judged as a whole; an image is refused "
        "unless the policy lets `images` pass"
    )
    model: str = Field(description="the name of a policy")


class Moderation(Message):
    """The moderation of one text or of all parts, with every category of OpenAI."""

    flagged: bool
    categories: dict[ModerationCategory, bool]
    category_scores: dict[ModerationCategory, float]
    category_applied_input_types: dict[ModerationCategory, list[Literal["text"]]]


class ModerationsResponse(Message):
    """One moderation for each text, in order, or one for all parts."""

    id: str
    model: str
    results: list[Moderation]


@router.ask("/v1/moderations", answer=ModerationsResponse)
async def moderations(request: Request, handling: Routed, body: ModerationsRequest) -> Response:
    """Judge texts by the policy `model`; the categories of its rules are OpenAI's."""
    runtime, given = runtime_of(request), body.input
    if isinstance(given, str) or isinstance(given[0], str):
        texts = texts_of(given)
        judgement = await runtime.judge.judge(body.model, texts, handling, stops_early=False)
        inputs = [[it] for it in judgement.decisions]
    else:
        content = CallContent()
        content.read(list[JsonValue](given))
        judgement, _ = await judge_call(
            *(runtime.judge, runtime.settings, body.model, content, handling),
            replaceable=content.texts,
            stops_early=False,
        )
        inputs = [judgement.decisions]
    published = judgement.published
    is_dry = published.document.mode is PolicyMode.DRY_RUN
    fields = {
        "id": f"modr-{request_id_of(request.scope)}",
        "model": published.reference,
        "results": [_moderation(it, is_dry=is_dry) for it in inputs],
    }
    return reply(fields, headers=timing_headers(judgement.timings))


def _moderation(decisions: Sequence[TextDecision], *, is_dry: bool) -> dict[str, Any]:
    """Return the categories of the rules that apply; the largest score counts."""
    scores = {category.value: 0.0 for category in ModerationCategory}
    applied = dict.fromkeys(scores, False)
    types = dict[str, list[str]]((category, []) for category in scores)
    for state in chain.from_iterable(it.states for it in decisions):
        if state.rule.category is not None:
            category = state.rule.category.value
            scores[category] = max(scores[category], min(max(state.score, 0.0), 1.0))
            applied[category] |= bool(state.applies)
            types[category] = ["text"]
    return {
        "flagged": not is_dry and any(it.action is not VerdictAction.ALLOW for it in decisions),
        "categories": applied,
        "category_scores": scores,
        "category_applied_input_types": types,
    }
