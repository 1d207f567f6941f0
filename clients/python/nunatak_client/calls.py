"""One function per route: arguments in, a complete call out. Shared by both clients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NoReturn, TypeVar, Unpack

from pydantic import JsonValue

from nunatak_client import replies
from nunatak_client.errors import InvalidInputError, InvalidResponseError
from nunatak_client.payloads import (
    Inputs,
    PredictOptions,
    ShownOptions,
    WireInputs,
    in_order,
    json_body,
    path_segment,
    predict_body,
    task_target,
    wire_inputs,
)
from nunatak_contract.enums import CandidateRole
from nunatak_contract.wire import LINES_TYPE, ROUTING_KEY_HEADER, CandidateChange, PolicyVerdict

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[AnswerT]):
    """One request, and the reading of its reply."""

    method: Literal["GET", "POST", "PUT"]
    path: str
    read: Callable[[replies.Reply], AnswerT]
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None
    deadline_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def answer(self, reply: replies.Reply) -> AnswerT:
        """Read `reply`.

        Raises:
            ApiError: the server refused.
            InvalidResponseError: the reply does not follow the contract.
        """
        replies.raise_for_problem(reply)
        return self.read(reply)


def predict(
    task: str, inputs: Inputs, **options: Unpack[PredictOptions]
) -> Call[replies.Prediction]:
    wire = wire_inputs(inputs)
    path, query = task_target(task)
    call = _asking(
        wire,
        None,
        lambda reply: replies.read_prediction(reply, num_inputs=wire.num_inputs),
        **options,
    )
    return replace(call, path=f"{path}/predict", query=query)


def predict_many(
    wire: WireInputs, tasks: Sequence[str], **options: Unpack[PredictOptions]
) -> Call[replies.FanOut]:
    return _asking(
        wire,
        tasks,
        lambda reply: replies.read_fan_out(reply, num_inputs=wire.num_inputs, tasks=tasks),
        **options,
    )


def named_tasks(tasks: Sequence[str]) -> Sequence[str]:
    """Return the references of several tasks.

    Raises:
        InvalidInputError: it is one text, or there is none.
    """
    named = [] if isinstance(tasks, str) or not isinstance(tasks, Iterable) else list(tasks)
    if not named:
        raise InvalidInputError(f"tasks must be a list of task references, got {tasks!r}")
    return named


def _asking(
    inputs: WireInputs,
    tasks: Sequence[str] | None,
    read: Callable[[replies.Reply], AnswerT],
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
        headers={} if routing_key is None else {ROUTING_KEY_HEADER: _sendable(routing_key)},
        read=read,
    )


def _sendable(routing_key: str) -> str:
    is_text = isinstance(routing_key, str)
    if is_text and routing_key.isascii() and routing_key.isprintable():
        return routing_key
    raise InvalidInputError(
        f"a routing key must be printable ASCII, got {routing_key!r}; send a digest of other keys"
    )


def stream(
    wire: WireInputs, tasks: Sequence[str], **options: Unpack[PredictOptions]
) -> Call[NoReturn]:
    """Return a call whose answer arrives line by line; a reply without lines is an error."""
    call = _asking(wire, tasks, _expect_lines, **options)
    return replace(call, headers={**call.headers, "accept": LINES_TYPE})


def _expect_lines(reply: replies.Reply) -> NoReturn:
    raise InvalidResponseError(f"expected lines, got an answer of status {reply.status}")


def check_whole(tasks: Sequence[str], answered: Sequence[str]) -> None:
    """Refuse a stream that ended without a line for each task."""
    if sorted(answered) != sorted(tasks):
        raise InvalidResponseError(
            f"asked for tasks {list(tasks)}, the stream ended after {list(answered)}"
        )


def judge(
    policy: str, inputs: str | Sequence[str], *, deadline_s: float | None = None
) -> Call[PolicyVerdict]:
    if isinstance(inputs, tuple):
        raise InvalidInputError(
            "a policy reads single texts, and a tuple is a pair; pass several texts as a list"
        )
    texts: JsonValue = inputs if isinstance(inputs, str) else list(in_order(inputs))
    return Call(
        method="POST",
        path=f"/v1/verdicts/{path_segment('policy', policy)}",
        content=json_body({"inputs": texts}),
        deadline_s=deadline_s,
        read=_read_as(PolicyVerdict),
    )


def set_candidate(
    place: tuple[str, str, CandidateRole], version: int, share: float, expected_version: int | None
) -> Call[CandidateChange]:
    path = alias_path(*place)
    return change("PUT", path, CandidateChange, expected_version, version=version, share=share)


def hold(
    reference: str, how: Literal["preload", "pin", "unpin", "evict"], kind: type[replies.ResultT]
) -> Call[replies.ResultT]:
    """Change which versions of a task are in memory."""
    path, query = task_target(reference)
    return Call(method="POST", path=f"{path}/{how}", query=query, read=_read_as(kind))


def show(path: str, kind: type[replies.ResultT], **query: str) -> Call[replies.ResultT]:
    return Call(method="GET", path=path, query=query, read=_read_as(kind))


def change(
    method: Literal["POST", "PUT"],
    path: str,
    kind: type[replies.ResultT],
    expected_version: int | None,
    **body: JsonValue,
) -> Call[replies.ResultT]:
    if expected_version is not None:
        body["expected_version"] = expected_version
    return Call(method=method, path=path, content=json_body(body), read=_read_as(kind))


def _read_as(kind: type[replies.ResultT]) -> Callable[[replies.Reply], replies.ResultT]:
    return lambda reply: replies.read_result(kind, replies.read_object(reply))


def task_path(name: str) -> str:
    return f"/v1/tasks/{path_segment('task name', name)}"


def alias_path(name: str, alias: str, *role: CandidateRole) -> str:
    return "/".join((task_path(name), "aliases", path_segment("alias", alias), *role))
