"""Replies to results: reads a body against the contract, or raises the error it stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import JsonValue, TypeAdapter, ValidationError

from nunatak_client.errors import InvalidResponseError, error_class
from nunatak_client.outputs import HeadKind, Result
from nunatak_client.results import FanOut, Prediction, Problem, TaskResult, Timings

PER_INPUT = ("tokens", "truncated")
"""What a server tells of each input beside its output."""

ResultT = TypeVar("ResultT", bound=Result)

_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response, whichever library received it; `headers` ignores case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the body holds the result."""
        return 200 <= self.status < 300

    @property
    def retry_after_s(self) -> float | None:
        """Seconds of `Retry-After`; `None` when absent or written as a date."""
        return _number(self.headers.get("retry-after"))


def raise_for_problem(reply: Reply) -> None:
    """Raise the `ApiError` that an unsuccessful reply stands for."""
    if reply.is_success:
        return
    try:
        problem = Problem.model_validate_json(reply.content)
    except ValidationError:
        raise error_class(reply.status)(
            code="http_error",
            status=reply.status,
            detail=f"the server answered HTTP {reply.status} without saying why; "
            "is this a Nunatak server?",
            request_id=reply.headers.get("x-request-id"),
            retry_after_s=reply.retry_after_s,
        ) from None
    raise problem.to_error(retry_after_s=reply.retry_after_s)


def read_object(reply: Reply) -> dict[str, JsonValue]:
    """Read a body that is one JSON object."""
    try:
        return _OBJECT.validate_json(reply.content)
    except ValidationError as error:
        raise _unexpected("a JSON object", error) from error


def read_result(kind: type[ResultT], content: object) -> ResultT:
    """Check decoded JSON against a result class."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise _unexpected(kind.__name__, error) from error


def read_prediction(reply: Reply, *, num_inputs: int | None) -> Prediction:
    """Read the answer of one task."""
    body = read_object(reply)
    return read_result(Prediction, _with_predicted(body, num_inputs) | _trail(reply))


def read_fan_out(reply: Reply, *, num_inputs: int | None, tasks: Sequence[str]) -> FanOut:
    """Read the answers of several tasks."""
    results = read_object(reply).get("results")
    entries = results if isinstance(results, list) else []
    nested = [
        _with_predicted(entry, num_inputs) if isinstance(entry, dict) else entry
        for entry in entries
    ]
    fan_out = read_result(FanOut, {"results": nested} | _trail(reply))
    answered = [result.reference for result in fan_out.results]
    if answered != list(tasks):
        raise InvalidResponseError(f"asked for tasks {list(tasks)}, got answers for {answered}")
    return fan_out


def read_line(line: str, *, num_inputs: int | None) -> TaskResult:
    """Read one line of a stream: the answer or failure of one task."""
    try:
        entry = _OBJECT.validate_json(line)
    except ValidationError as error:
        raise _unexpected("a JSON object on each line", error) from error
    return read_result(TaskResult, _with_predicted(entry, num_inputs))


def read_timings(headers: Mapping[str, str]) -> Timings:
    """Read the timing headers that are there."""
    batch_size = _number(headers.get("x-batch-size"))
    return Timings(
        queue_ms=_number(headers.get("x-queue-ms")),
        tokenize_ms=_number(headers.get("x-tokenize-ms")),
        compute_ms=_number(headers.get("x-compute-ms")),
        batch_size=None if batch_size is None else int(batch_size),
    )


def _with_predicted(body: dict[str, JsonValue], num_inputs: int | None) -> dict[str, JsonValue]:
    """Put head and outputs together, one entry per input also where it came without a list."""
    outputs = body.get("outputs")
    if outputs is None:
        return body
    nested = _as_list(outputs, num_inputs)
    wanted = num_inputs or 1
    if not (isinstance(nested, list) and len(nested) == wanted):
        raise InvalidResponseError(f"asked about {wanted} inputs, got outputs for another number")
    # Servers that know one kind of task only do not name it.
    head = body.get("head", HeadKind.SEQUENCE_CLASSIFICATION)
    told = {name: _as_list(body[name], num_inputs) for name in PER_INPUT if name in body}
    return {**body, **told, "predicted": {"head": head, "outputs": nested}}


def _as_list(value: JsonValue, num_inputs: int | None) -> JsonValue:
    return [value] if num_inputs is None else value


def _trail(reply: Reply) -> dict[str, object]:
    return {
        "timings": read_timings(reply.headers),
        "request_id": reply.headers.get("x-request-id"),
    }


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _unexpected(expected: str, error: ValidationError) -> InvalidResponseError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or "the body"
    return InvalidResponseError(
        f"expected {expected}, but {place}: {first['msg']}; is this a Nunatak server?"
    )
