"""One function per route: arguments in, a complete call out. Shared by both clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NoReturn, TypeVar

from pydantic import JsonValue

from nunatak_client.errors import InvalidInputError, InvalidResponseError
from nunatak_client.payloads import (
    Inputs,
    Parameters,
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
from nunatak_contract.enums import CandidateRole, FunctionToApply
from nunatak_contract.memory import MemoryReport
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """The options of a prediction, next to its inputs."""

    top_k: int | None = None
    function_to_apply: FunctionToApply | str | None = None
    parameters: Parameters | None = None
    deadline_s: float | None = None
    routing_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a prediction: deadline and routing key."""
        return {} if self.routing_key is None else {ROUTING_KEY_HEADER: self.routing_key}


def predict(task: str, inputs: Inputs, options: PredictOptions) -> Call[Prediction]:
    """Ask one task."""
    wire = wire_inputs(inputs)
    target = task_target(task)
    return Call(
        method="POST",
        path=f"{target.path}/predict",
        query=target.query,
        content=_predict_body(wire, options),
        deadline_s=options.deadline_s,
        headers=options.headers,
        read=lambda reply: read_prediction(reply, num_inputs=wire.num_inputs),
    )


def predict_many(inputs: Inputs, tasks: Sequence[str], options: PredictOptions) -> Call[FanOut]:
    """Ask several tasks about the same inputs.

    Raises:
        InvalidInputError: `tasks` is one string and not a list of references.
    """
    if isinstance(tasks, str):
        raise InvalidInputError(f"tasks must be a list of task references, got {tasks!r}")
    wire = wire_inputs(inputs)
    return Call(
        method="POST",
        path="/v1/predict",
        content=_predict_body(wire, options, tasks=tasks),
        deadline_s=options.deadline_s,
        headers=options.headers,
        read=lambda reply: read_fan_out(reply, num_inputs=wire.num_inputs, tasks=tasks),
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


def stream(inputs: Inputs, tasks: Sequence[str], options: PredictOptions) -> StreamCall:
    """Ask several tasks for results on arrival; raises like `predict_many`."""
    call = predict_many(inputs, tasks, options)
    lines = {"accept": LINES_TYPE}
    return StreamCall(
        call=replace(call, headers={**call.headers, **lines}),
        tasks=tasks,
        num_inputs=wire_inputs(inputs).num_inputs,
    )


def set_candidate(
    place: tuple[str, str, CandidateRole],
    version: int,
    share: float,
    expected_version: int | None,
) -> Call[CandidateChange]:
    """Let a version run next to an alias."""
    body: dict[str, JsonValue] = {"version": version, "share": share}
    return Call(
        method="PUT",
        path=_candidate_path(*place),
        content=json_body(body | _expectation(expected_version)),
        read=_reader(CandidateChange),
    )


def end_candidate(
    place: tuple[str, str, CandidateRole], expected_version: int | None
) -> Call[CandidateChange]:
    """End the candidate of this role next to an alias."""
    return Call(
        method="POST",
        path=f"{_candidate_path(*place)}/end",
        content=json_body(_expectation(expected_version)),
        read=_reader(CandidateChange),
    )


def shadow_report(name: str, alias: str) -> Call[ShadowReport]:
    """Ask for the results of a shadow."""
    return Call(
        method="GET",
        path=f"/v1/tasks/{path_segment('task name', name)}/shadow",
        query={"alias": alias},
        read=_reader(ShadowReport),
    )


def tasks() -> Call[tuple[TaskSummary, ...]]:
    """List the tasks."""
    return Call(method="GET", path="/v1/tasks", read=_read_tasks)


def task(reference: str) -> Call[TaskDetail]:
    """Describe one task and one version of it."""
    target = task_target(reference)
    return Call(method="GET", path=target.path, query=target.query, read=_reader(TaskDetail))


def promote(name: str, alias: str, version: int, expected_version: int | None) -> Call[AliasChange]:
    """Point an alias at a version."""
    body: dict[str, JsonValue] = {"version": version}
    return Call(
        method="PUT",
        path=_alias_path(name, alias),
        content=json_body(body | _expectation(expected_version)),
        read=_reader(AliasChange),
    )


def rollback(name: str, alias: str, expected_version: int | None) -> Call[AliasChange]:
    """Point an alias back at the previous version."""
    return Call(
        method="POST",
        path=f"{_alias_path(name, alias)}/rollback",
        content=json_body(_expectation(expected_version)),
        read=_reader(AliasChange),
    )


def preload(reference: str) -> Call[ResidencyReport]:
    """Load a task version into memory."""
    target = task_target(reference)
    return Call(
        method="POST",
        path=f"{target.path}/preload",
        query=target.query,
        read=_reader(ResidencyReport),
    )


def pin(reference: str) -> Call[ResidencyReport]:
    """Load a task version into memory and pin it."""
    target = task_target(reference)
    return Call(
        method="POST", path=f"{target.path}/pin", query=target.query, read=_reader(ResidencyReport)
    )


def unpin(reference: str) -> Call[Unpinning]:
    """Unpin a task, or one version of it."""
    target = task_target(reference)
    return Call(
        method="POST", path=f"{target.path}/unpin", query=target.query, read=_reader(Unpinning)
    )


def evict(reference: str) -> Call[Eviction]:
    """Drop a task, or one version of it, from memory."""
    target = task_target(reference)
    return Call(
        method="POST", path=f"{target.path}/evict", query=target.query, read=_reader(Eviction)
    )


def memory() -> Call[MemoryReport]:
    """Ask for the memory report."""
    return Call(method="GET", path="/v1/memory", read=_reader(MemoryReport))


def info() -> Call[ServerInfo]:
    """Ask for the facts about the server."""
    return Call(method="GET", path="/info", read=_reader(ServerInfo))


def readiness() -> Call[bool]:
    """Ask whether the server is ready. "Not ready" is an answer and no error."""
    return Call(method="GET", path="/readyz", read=lambda _reply: True)


def _predict_body(
    wire: WireInputs, options: PredictOptions, *, tasks: Sequence[str] | None = None
) -> bytes:
    return predict_body(
        wire,
        tasks=tasks,
        top_k=options.top_k,
        function_to_apply=options.function_to_apply,
        parameters=options.parameters,
    )


def _reader(kind: type[ResultT]) -> Callable[[Reply], ResultT]:
    return lambda reply: read_result(kind, read_object(reply))


def _read_tasks(reply: Reply) -> tuple[TaskSummary, ...]:
    listed = read_object(reply).get("tasks")
    entries = listed if isinstance(listed, list) else [listed]
    return tuple(read_result(TaskSummary, entry) for entry in entries)


def _alias_path(name: str, alias: str) -> str:
    return f"/v1/tasks/{path_segment('task name', name)}/aliases/{path_segment('alias', alias)}"


def _candidate_path(name: str, alias: str, role: CandidateRole) -> str:
    return f"{_alias_path(name, alias)}/{role}"


def _expectation(expected_version: int | None) -> dict[str, JsonValue]:
    return {} if expected_version is None else {"expected_version": expected_version}
