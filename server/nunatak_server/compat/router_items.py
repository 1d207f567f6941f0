"""The items of a request of the runtime contract: each has its own answer or its own error."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from fastapi import Request

from nunatak_contract.errors import NunatakError
from nunatak_contract.wire import COMPUTE_HEADER, QUEUE_HEADER
from nunatak_server.compat.runtime_contract import EmbeddingsRequest, Options
from nunatak_server.compat.translation import base64_of, embed_texts, usage_of
from nunatak_server.http.endpoints import runtime_of
from nunatak_server.http.replies import TASK_VERSION_HEADER
from nunatak_server.predict.types import Embeddings, Handling

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
ITEM_ERRORS: Final = {
    "too_many_tokens": "max_length_exceeded",
    "text_too_long": "max_length_exceeded",
    "empty_text": "invalid_input",
    "invalid_text": "invalid_input",
    "deadline_exceeded": "deadline_exceeded",
    "deadline_too_short": "deadline_exceeded",
}
"""The errors of one input. Every other error fails the request."""
LATE: Final = frozenset({"deadline_exceeded", "deadline_too_short"})
"""The errors of all inputs together."""


async def ask_each(
    ask: Callable[[tuple[ItemT, ...]], Awaitable[tuple[AnswerT, dict[str, str]]]],
    items: tuple[ItemT, ...],
) -> tuple[list[tuple[AnswerT | str, int]], dict[str, str]]:
    """Ask about all items at once, or about each item alone if one item fails all others.

    Returns:
        For each item an answer and the item's place in the answer, or the item's error; the headers
        of the answer to all items.
    """

    async def ask_alone(item: ItemT) -> AnswerT | str:
        try:
            return (await ask((item,)))[0]
        except NunatakError as error:
            if error.code not in ITEM_ERRORS:
                raise
            return ITEM_ERRORS[error.code]

    try:
        whole, headers = await ask(items)
    except NunatakError as error:
        if error.code not in ITEM_ERRORS:
            raise
        if len(items) == 1 or error.code in LATE:
            return [(ITEM_ERRORS[error.code], 0)] * len(items), {}
        return [(it, 0) for it in await asyncio.gather(*map(ask_alone, items))], {}
    return [(whole, place) for place in range(len(items))], headers


async def embed(
    request: Request, body: EmbeddingsRequest, handling: Handling
) -> tuple[dict[str, Any], dict[str, str]]:
    """Embed texts with the backbone; return the answer of the contract and its headers.

    Raises:
        NunatakError: `model_not_found` or `invalid_request`, the backbone has another name, depth
            or width; or the service cannot answer.
    """
    own = with_deadline(handling, body.options.deadline_ms)
    backbone = runtime_of(request).backbones.named(body.model)
    layer, width = backbone.config.num_layers, backbone.config.hidden_width
    if body.layer not in {None, layer} or body.dimensions not in {None, width}:
        raise NunatakError(
            "invalid_request",
            problem=f"layer must be {layer} and dimensions must be {width}, or absent",
        )

    async def ask(part: tuple[str, ...]) -> tuple[Embeddings, dict[str, str]]:
        cuts = body.options.overflow == "truncate"
        return await embed_texts(request, own, part, truncates=cuts, backbone=backbone)

    items = [body.input] if isinstance(body.input, str) else body.input
    texts = tuple(it if isinstance(it, str) else it.text for it in items)
    found, headers = await ask_each(ask, texts)
    encode = base64_of if body.encoding_format == "base64" else list[float]
    data = [
        {
            "object": "embedding",
            "index": index,
            **({"error": it} if isinstance(it, str) else {"embedding": encode(it.vectors[place])}),
        }
        for index, (it, place) in enumerate(found)
    ]
    answers = {id(it): it for it, _ in found if not isinstance(it, str)}
    num_tokens = sum(it.num_tokens for it in answers.values())
    fields = {"object": "list", "data": data, "model": backbone.name, "usage": usage_of(num_tokens)}
    space = {"model_sha256": backbone.digest, "layer": layer, "dimension": width}
    meta = {
        "model_id": backbone.name,
        "representation": {**space, "normalized": True, "modality": "text"},
    }
    return with_meta(fields, body.options, headers, **meta), headers


def with_deadline(handling: Handling, deadline_ms: float | None) -> Handling:
    """Return how to handle a request with the earlier of two deadlines."""
    known = [handling.own_deadline_s, None if deadline_ms is None else deadline_ms / 1000]
    earliest = min((it for it in known if it is not None), default=None)
    return replace(handling, own_deadline_s=earliest)


def with_meta(
    fields: dict[str, Any], options: Options, headers: dict[str, str], **more: object
) -> dict[str, Any]:
    if not options.return_meta:
        return fields
    times = {
        "queue_ms": float(headers.get(QUEUE_HEADER, 0)),
        "compute_ms": float(headers.get(COMPUTE_HEADER, 0)),
    }
    served = headers.get(TASK_VERSION_HEADER)
    return {**fields, "meta": {"model_id": served, "profile": "exact", **times, **more}}
