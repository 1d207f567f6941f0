"""The shapes of Hugging Face Inference, for `huggingface_hub.InferenceClient` with a URL as model.

A model of Hugging Face has one task, so each base URL here stands for one model:

    /hf/tasks/{task}              a task: `name` or `name@alias`
    /hf/tasks/{task}/{version}    one version of the task
    /hf/backbone                  the backbone, for the similarity of sentences

The head of the task decides the shape of the answer. The shapes are those of huggingface_hub 2.4.
"""

from collections.abc import Mapping, Sequence
from operator import mul
from typing import Annotated, Any, Final, cast

from fastapi import Request, Response
from pydantic import Field

from nunatak_contract.enums import AggregationStrategy, HeadKind
from nunatak_contract.requests import Inputs, Message, Parameters, Text
from nunatak_server.compat.failures import router_of
from nunatak_server.compat.tensors import NOTHING
from nunatak_server.compat.translation import Texts, embed_texts
from nunatak_server.errors import invalid_request
from nunatak_server.http.endpoints import Routed, Unrouted, ask_task, reference_text
from nunatak_server.http.replies import inputs_of, reply
from nunatak_server.outputs.entities import AnswerScore
from nunatak_server.predict.types import TaskPrediction, as_sent

PARAMETERS: Final[Mapping[HeadKind, frozenset[str]]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: frozenset({"top_k", "function_to_apply", "on_long"}),
    HeadKind.TOKEN_CLASSIFICATION: frozenset({"aggregation_strategy", "ignore_labels", "stride"}),
    HeadKind.QUESTION_ANSWERING: frozenset(
        {"top_k", "max_answer_len", "handle_impossible_answer", "align_to_words", "doc_stride"}
    ),
}
"""The parameters of each kind of head. Other parameters are refused."""


class HfParameters(Parameters):
    """The native parameters. Entities are grouped by default, as by Hugging Face.

    The lengths that a task reads belong to its version.
    """

    max_seq_len: None = None
    max_question_len: None = None

    aggregation_strategy: Annotated[AggregationStrategy, Field(strict=False)] = (
        AggregationStrategy.SIMPLE
    )


class HfRequest(Message):
    """One or more inputs for one task."""

    inputs: Inputs
    parameters: HfParameters = HfParameters.model_validate({})


class Sentences(Message):
    """A sentence, and the sentences to compare it with."""

    source_sentence: Text
    sentences: Texts


class NoParameters(Message):
    """The parameters of a request that has none."""


class SimilarityRequest(Message):
    """Sentences to compare."""

    inputs: Sentences
    parameters: NoParameters | None = None


router = router_of("Hugging Face", prefix="/hf")


@router.ask("/tasks/{task}", "/tasks/{task}/{version}", answer=Any)
async def ask(
    request: Request, handling: Routed, task: str, body: HfRequest, version: str | None = None
) -> Response:
    """Ask a task; the head of the task decides the shape of the answer."""
    reference, inputs = reference_text(task, version), inputs_of(body.inputs)
    result, headers = await ask_task(request, handling, reference, inputs, body.parameters)
    return reply(_answer(result, body), headers=headers)


@router.ask("/backbone", answer=list[float])
async def compare(request: Request, handling: Unrouted, body: SimilarityRequest) -> Response:
    """Return the cosine similarity of the first sentence with each of the others."""
    sentences = (body.inputs.source_sentence, *body.inputs.sentences)
    found, headers = await embed_texts(request, handling, sentences)
    source, *others = found.vectors
    dots = [sum(map(mul, source, other)) for other in others]
    return reply(dots, headers=headers)


def _answer(result: TaskPrediction, body: HfRequest) -> Any:  # noqa: ANN401 - one shape for each head
    if result.head not in PARAMETERS:
        raise invalid_request(
            f"InferenceClient has no call for {result.head}; ask {result.task} at /rerank"
        )
    known = PARAMETERS[result.head]
    if body.parameters.model_fields_set - known:
        raise invalid_request(
            f"parameters of {result.head.replace('_', ' ')} may be: {', '.join(sorted(known))}"
        )
    match result.head:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            return list(result.outputs)
        case HeadKind.QUESTION_ANSWERING if body.parameters.top_k in {None, 1}:
            rows = cast("Sequence[list[AnswerScore]]", result.outputs)
            return as_sent([row[0] if row else NOTHING for row in rows], body.inputs)
        case _:
            return as_sent(result.outputs, body.inputs)
