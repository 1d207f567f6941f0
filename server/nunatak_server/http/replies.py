"""Replies: results of the service and the registry in the wire format.

Answers line by line are `application/x-ndjson`. Each line is sent as soon as it is ready.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Final, cast

import orjson
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from nunatak_contract import memory, wire
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import (
    Input,
    Inputs,
    Item,
    Query,
    QueryInput,
    Question,
    QuestionInput,
    TextPair,
)
from nunatak_model import Backbone, BackboneConfig, Branch
from nunatak_registry import ListedTask
from nunatak_server.engine.backbones import Backbones
from nunatak_server.http.problems import problem_of
from nunatak_server.predict.types import (
    StageTimes,
    StreamedResult,
    TaskFailure,
    TaskPrediction,
    prediction_fields,
)
from nunatak_server.runtime import Runtime
from nunatak_server.telemetry.memory import MemoryLedger, one_of_each, saved_by_formula
from nunatak_versions import LoadedTask

TASK_VERSION_HEADER: Final = "x-task-version"
TOKENS_READ_HEADER: Final = "x-tokens-read"
TRUNCATED_HEADER: Final = "x-truncated"


class TaskResponse(wire.TaskSummary):
    """One task, and the manifest of one of its versions."""

    manifest: TaskManifest


def reply(content: object, *, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response. Its content was made here and needs no validation."""
    return Response(
        orjson.dumps(content, default=_plain),
        media_type="application/json",
        headers=dict(headers or {}),
    )


def _plain(value: object) -> object:
    match value:
        case BaseModel():
            # Cached properties stand next to the fields, and are none.
            return {name: getattr(value, name) for name in type(value).model_fields}
        case frozenset():
            return list(cast("frozenset[object]", value))
        case _:
            raise TypeError(f"{type(value).__name__} has no form in JSON")


def inputs_of(inputs: Inputs) -> tuple[Input, ...]:
    items = inputs if isinstance(inputs, list) else [inputs]
    return tuple(map(_input, items))


def _input(item: Item) -> Input:
    match item:
        case str():
            return item
        case TextPair():
            return item.text if item.text_pair is None else (item.text, item.text_pair)
        case QuestionInput():
            return Question(question=item.question, context=item.context)
        case QueryInput():
            return Query(query=item.query, documents=tuple(item.documents))


def result_fields(
    result: TaskPrediction | TaskFailure, inputs: Inputs, *, request_id: str | None
) -> dict[str, Any]:
    if isinstance(result, TaskPrediction):
        return {"reference": result.reference, **prediction_fields(result, inputs)}
    problem = problem_of(result.error, request_id=request_id)
    return {"reference": result.reference, "error": problem}


def timing_headers(timings: StageTimes) -> dict[str, str]:
    return {
        wire.QUEUE_HEADER: f"{timings.queue_s * 1000:.3f}",
        wire.TOKENIZE_HEADER: f"{timings.tokenize_s * 1000:.3f}",
        wire.COMPUTE_HEADER: f"{timings.compute_s * 1000:.3f}",
        wire.BATCH_SIZE_HEADER: str(timings.batch_rows),
    }


def read_headers(num_tokens: int, *, is_cut: bool) -> dict[str, str]:
    return {TOKENS_READ_HEADER: str(num_tokens), TRUNCATED_HEADER: "true" if is_cut else "false"}


def summaries_of(
    tasks: Iterable[ListedTask], resident: Iterable[LoadedTask]
) -> list[dict[str, Any]]:
    # One pass over tasks and versions in memory, because there may be thousands of both.
    versions = defaultdict[str, list[int]](list)
    for loaded in resident:
        manifest = loaded.manifest
        versions[manifest.task].append(manifest.version)
    summaries = map(wire.TaskSummary.model_validate, tasks)
    return [{**vars(it), "resident_versions": versions.get(it.name, ())} for it in summaries]


def backbone_memory(backbone: Backbone) -> memory.BackboneMemory:
    return memory.BackboneMemory(
        name=backbone.name,
        digest=backbone.digest,
        dtype=str(backbone.dtype).removeprefix("torch."),
        bytes=backbone.num_bytes,
        parameters=backbone.num_parameters,
    )


def memory_report(
    runtime: Runtime,
    resident: Sequence[LoadedTask],
    ledger: MemoryLedger,
    process: memory.ProcessMemory,
    peak_activations: int | None,
) -> memory.MemoryReport:
    return memory.MemoryReport(
        backbone=backbone_memory(runtime.backbone),
        other_backbones=tuple(map(backbone_memory, runtime.backbones.others)),
        tasks=tuple(_task_memory(it, is_pinned=runtime.residency.is_pinned(it)) for it in resident),
        shared_bytes=ledger.shared_bytes,
        dedicated_bytes=ledger.dedicated_bytes,
        saved_share=ledger.saved_share,
        saved_share_formula=saved_by_formula(*_branches(runtime.backbones, one_of_each(resident))),
        tiers=memory.TiersMemory(device=runtime.residency.stats(), host=runtime.host_tier.stats()),
        trunk_cache=runtime.trunk_cache.stats,
        activations=memory.ActivationsMemory(peak_bytes=peak_activations),
        process=_with_parts(process, runtime, ledger),
    )


def _with_parts(
    process: memory.ProcessMemory, runtime: Runtime, ledger: MemoryLedger
) -> memory.ProcessMemory:
    own = runtime.runtime_bytes
    if own is None:
        return process
    rest = process.rss_bytes - own - runtime.counted_bytes(ledger)
    return process.model_copy(update={"runtime_bytes": own, "rest_bytes": rest})


def _branches(
    backbones: Backbones, resident: Collection[LoadedTask]
) -> Iterator[tuple[BackboneConfig, list[Branch]]]:
    for backbone in backbones:
        own = [it.branch for it in resident if backbones.of(it.manifest) is backbone]
        yield backbone.config, own


def _task_memory(task: LoadedTask, *, is_pinned: bool) -> memory.TaskMemory:
    branch = task.branch
    return memory.TaskMemory(
        task=task.manifest.task,
        version=task.manifest.version,
        method=task.manifest.method.kind,
        split_depth=branch.split_depth,
        bytes=task.num_bytes,
        parameters=branch.branch_parameters + branch.head_parameters,
        pinned=is_pinned,
    )


NO_BUFFERING: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""The header that stops proxies from holding lines back."""


class LinesResponse(StreamingResponse):
    """Sends lines on arrival. Closes their source when all are sent or the caller has gone."""

    media_type = wire.LINES_TYPE

    def __init__(self, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(lines, headers=NO_BUFFERING)
        self._lines = lines
        self._held: AbstractContextManager[object] = nullcontext()

    def hold(self, held: AbstractContextManager[object]) -> None:
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            async with aclosing(self._lines):
                await super().__call__(scope, receive, send)


def wants_lines(accept: str | None) -> bool:
    """Return whether an `Accept` header asks for lines by name, not by a wildcard."""
    ranges = (item.partition(";") for item in (accept or "").split(","))
    return any(
        name.strip().lower() == wire.LINES_TYPE
        and "q=0" not in parameters.replace(" ", "").split(";")
        for name, _, parameters in ranges
    )


async def lines_response(
    results: AsyncGenerator[StreamedResult], inputs: Inputs, *, request_id: str | None
) -> LinesResponse:
    """Return the response of a stream, once its first result is ready.

    A refusal of the whole request is raised before anything is sent.
    """
    first = await anext(results)

    async def lines() -> AsyncGenerator[bytes]:
        async with aclosing(results):
            yield _line(first, inputs, request_id=request_id)
            async for streamed in results:
                yield _line(streamed, inputs, request_id=request_id)

    return LinesResponse(lines())


def _line(streamed: StreamedResult, inputs: Inputs, *, request_id: str | None) -> bytes:
    fields = result_fields(streamed.result, inputs, request_id=request_id)
    timings = _timing_fields(streamed.timings)
    return line_of({**fields, "timings": timings})


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return JSON with one line end for all readers: some end a line at other characters too."""
    line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    for character in "\x85\u2028\u2029":
        line = line.replace(character.encode(), b"\\u%04x" % ord(character))
    return line


def _timing_fields(timings: StageTimes) -> Mapping[str, Any]:
    return {
        "queue_ms": round(timings.queue_s * 1000, 3),
        "tokenize_ms": round(timings.tokenize_s * 1000, 3),
        "compute_ms": round(timings.compute_s * 1000, 3),
        "batch_size": timings.batch_rows,
    }
