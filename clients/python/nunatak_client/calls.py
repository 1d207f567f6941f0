"""One function per route: arguments in, a complete call out. Both clients offer them as methods."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NoReturn, TypeVar, Unpack

from pydantic import JsonValue

from nunatak_client.errors import InvalidInputError, InvalidResponseError
from nunatak_client.payloads import (
    Inputs,
    PredictOptions,
    ShownOptions,
    WireInputs,
    json_body,
    path_segment,
    predict_body,
    task_target,
    wire_inputs,
)
from nunatak_client.replies import (
    FanOut,
    Prediction,
    Reply,
    ResultT,
    TaskResult,
    raise_for_problem,
    read_fan_out,
    read_line,
    read_object,
    read_prediction,
    read_result,
)
from nunatak_contract.enums import CandidateRole
from nunatak_contract.memory import MemoryReport
from nunatak_contract.names import DEFAULT_ALIAS
from nunatak_contract.wire import (
    LINES_TYPE,
    ROUTING_KEY_HEADER,
    AliasChange,
    CandidateChange,
    Eviction,
    ResidencyReport,
    ServerInfo,
    ShadowReport,
    TaskDetail,
    TaskListing,
    TaskSummary,
    Unpinning,
)

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[AnswerT]):
    """One request, and the reading of its reply."""

    method: Literal["GET", "POST", "PUT"]
    path: str
    read: Callable[[Reply], AnswerT]
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None
    deadline_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def answer(self, reply: Reply) -> AnswerT:
        """Read `reply`.

        Raises:
            ApiError: the server refused.
            InvalidResponseError: the reply does not follow the contract.
        """
        raise_for_problem(reply)
        return self.read(reply)


def predict(task: str, inputs: Inputs, **options: Unpack[PredictOptions]) -> Call[Prediction]:
    """Ask one task about one input or a list of inputs.

    Args:
        task: `name`, `name@alias` or `name/3`.
        inputs: A text, a pair of texts as a tuple, a `Question`, a `Query`, or a list of these.
        options: `top_k`: labels, documents or answers per input. Absent: all labels or documents,
            one answer. `function_to_apply`: `softmax`, `sigmoid` or `none`. Absent: by the task's
            kind. `parameters`: further options, for tasks that do not classify whole texts.
            `deadline_s`: seconds for the whole call, with further attempts. `routing_key`: requests
            of one key get one version while a canary runs.
    """
    wire = wire_inputs(inputs)
    target = task_target(task)
    call = _asking(
        wire, None, lambda reply: read_prediction(reply, num_inputs=wire.num_inputs), **options
    )
    return replace(call, path=f"{target.path}/predict", query=target.query)


def predict_many(
    inputs: Inputs, tasks: Sequence[str], **options: Unpack[PredictOptions]
) -> Call[FanOut]:
    """Ask several tasks about the same inputs; a task that fails does not fail the others."""
    if isinstance(tasks, str):
        raise InvalidInputError(f"tasks must be a list of task references, got {tasks!r}")
    wire = wire_inputs(inputs)
    return _asking(
        wire,
        tasks,
        lambda reply: read_fan_out(reply, num_inputs=wire.num_inputs, tasks=tasks),
        **options,
    )


def _asking(
    inputs: WireInputs,
    tasks: Sequence[str] | None,
    read: Callable[[Reply], AnswerT],
    *,
    deadline_s: float | None = None,
    routing_key: str | None = None,
    **shown: Unpack[ShownOptions],
) -> Call[AnswerT]:
    return Call(
        method="POST",
        path="/v1/predict",
        content=predict_body(inputs, tasks=tasks, **shown),
        deadline_s=deadline_s,
        headers={} if routing_key is None else {ROUTING_KEY_HEADER: routing_key},
        read=read,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCall:
    """A request whose answer arrives line by line, one line for each task."""

    call: Call[FanOut]
    tasks: Sequence[str]
    num_inputs: int | None

    def read(self, line: str) -> TaskResult:
        """Read one line.

        Raises:
            InvalidResponseError: the line does not follow the contract.
        """
        return read_line(line, num_inputs=self.num_inputs)

    def refuse(self, reply: Reply) -> NoReturn:
        """Raise the error of a reply without lines.

        Raises:
            ApiError: the server refused.
            InvalidResponseError: the reply does not follow the contract.
        """
        raise_for_problem(reply)
        raise InvalidResponseError(f"expected lines, got an answer of status {reply.status}")

    def check_whole(self, answered: Sequence[str]) -> None:
        """Refuse a stream that ended without a line for each task.

        Raises:
            InvalidResponseError: a task has no line.
        """
        if sorted(answered) != sorted(self.tasks):
            raise InvalidResponseError(
                f"asked for tasks {list(self.tasks)}, the stream ended after {list(answered)}"
            )


def stream(inputs: Inputs, tasks: Sequence[str], **options: Unpack[PredictOptions]) -> StreamCall:
    call = predict_many(inputs, tasks, **options)
    return StreamCall(
        call=replace(call, headers={**call.headers, "accept": LINES_TYPE}),
        tasks=tasks,
        num_inputs=wire_inputs(inputs).num_inputs,
    )


def tasks() -> Call[tuple[TaskSummary, ...]]:
    """List the tasks of the server's registry."""
    return Call(method="GET", path="/v1/tasks", read=lambda it: _read_as(TaskListing)(it).tasks)


def task(reference: str) -> Call[TaskDetail]:
    """Describe a task and the version that `reference` means."""
    target = task_target(reference)
    return replace(_show(target.path, TaskDetail), query=target.query)


def promote(
    task: str, alias: str, version: int, expected_version: int | None = None
) -> Call[AliasChange]:
    """Point `alias` at `version`, which the server loads and probes first.

    Raises:
        ConflictError: the alias does not point to `expected_version` (0: it must not exist yet).
    """
    path = _alias_path(task, alias)
    return _change("PUT", path, AliasChange, expected_version, version=version)


def rollback(task: str, alias: str, expected_version: int | None = None) -> Call[AliasChange]:
    """Point `alias` back at the previous version."""
    path = f"{_alias_path(task, alias)}/rollback"
    return _change("POST", path, AliasChange, expected_version)


def set_canary(
    task: str,
    version: int,
    share: float,
    *,
    alias: str = DEFAULT_ALIAS,
    expected_version: int | None = None,
) -> Call[CandidateChange]:
    """Let `version`, once loaded and probed, answer a share of the alias's requests.

    Raises:
        ConflictError: the canary is not `expected_version` (0: there must be none).
    """
    path = f"{_alias_path(task, alias)}/{CandidateRole.CANARY}"
    return _change("PUT", path, CandidateChange, expected_version, version=version, share=share)


def set_shadow(
    task: str,
    version: int,
    share: float = 1.0,
    *,
    alias: str = DEFAULT_ALIAS,
    expected_version: int | None = None,
) -> Call[CandidateChange]:
    """Run `version` unseen on a share of the alias's requests, to compare it."""
    path = f"{_alias_path(task, alias)}/{CandidateRole.SHADOW}"
    return _change("PUT", path, CandidateChange, expected_version, version=version, share=share)


def end_candidate(
    task: str,
    role: CandidateRole,
    *,
    alias: str = DEFAULT_ALIAS,
    expected_version: int | None = None,
) -> Call[CandidateChange]:
    """End the canary or the shadow of an alias."""
    path = f"{_alias_path(task, alias)}/{role}/end"
    return _change("POST", path, CandidateChange, expected_version)


def shadow_report(task: str, *, alias: str = DEFAULT_ALIAS) -> Call[ShadowReport]:
    """Report the results of an alias's shadow on this server."""
    path = f"/v1/tasks/{path_segment('task name', task)}/shadow"
    return replace(_show(path, ShadowReport), query={"alias": alias})


def preload(reference: str) -> Call[ResidencyReport]:
    """Load a task version into memory and check it."""
    return _hold(reference, "preload", ResidencyReport)


def pin(reference: str) -> Call[ResidencyReport]:
    """Load the version that `reference` means now, and keep it in memory."""
    return _hold(reference, "pin", ResidencyReport)


def unpin(reference: str) -> Call[Unpinning]:
    """Let the server evict a task again, or the one version `name/3`."""
    return _hold(reference, "unpin", Unpinning)


def evict(reference: str) -> Call[Eviction]:
    """Drop a task, or the one version `name/3`, from memory."""
    return _hold(reference, "evict", Eviction)


def memory() -> Call[MemoryReport]:
    """Report bytes in use, and the bytes of one full model per task."""
    return _show("/v1/memory", MemoryReport)


def info() -> Call[ServerInfo]:
    """Report the facts about the server."""
    return _show("/info", ServerInfo)


def readiness() -> Call[bool]:
    """Ask whether the server is ready. "Not ready" is an answer and no error."""
    return Call(method="GET", path="/readyz", read=lambda _reply: True)


def _hold(reference: str, how: str, kind: type[ResultT]) -> Call[ResultT]:
    target = task_target(reference)
    path = f"{target.path}/{how}"
    return Call(method="POST", path=path, query=target.query, read=_read_as(kind))


def _show(path: str, kind: type[ResultT]) -> Call[ResultT]:
    return Call(method="GET", path=path, read=_read_as(kind))


def _change(
    method: Literal["POST", "PUT"],
    path: str,
    kind: type[ResultT],
    expected_version: int | None,
    **body: JsonValue,
) -> Call[ResultT]:
    if expected_version is not None:
        body["expected_version"] = expected_version
    return Call(method=method, path=path, content=json_body(body), read=_read_as(kind))


def _read_as(kind: type[ResultT]) -> Callable[[Reply], ResultT]:
    return lambda reply: read_result(kind, read_object(reply))


def _alias_path(task: str, alias: str) -> str:
    return f"/v1/tasks/{path_segment('task name', task)}/aliases/{path_segment('alias', alias)}"
