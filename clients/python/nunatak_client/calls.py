"""Arguments to requests: inputs, options and references as JSON, and one function per route.

Pure functions, shared by both clients.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, Literal, NoReturn, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from pydantic import JsonValue

from nunatak_client import replies
from nunatak_client.errors import InvalidInputError, InvalidResponseError
from nunatak_contract.enums import AggregationStrategy, CandidateRole, FunctionToApply, OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import JsonText
from nunatak_contract.requests import Input, Query, Question
from nunatak_contract.wire import LINES_TYPE, ROUTING_KEY_HEADER, CandidateChange, PolicyVerdict

T = TypeVar("T")
Inputs = Input | Sequence[Input]
"""One input, or a list of inputs. A tuple is always one pair; several inputs are a list."""
Messages = Sequence[Mapping[str, JsonValue]]
"""The messages of a call to a language model, in the form of any provider."""
Questions = Mapping[str, Mapping[str, JsonValue]]
"""Typed questions by their names, as System One writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Further options of tasks. Absent: the default of the server or of the task version.

    Classification and ranking have `on_long`: long texts are read in windows, refused or cut. Token
    classification has `aggregation_strategy`, `ignore_labels` and `stride`. Question answering has
    `doc_stride`, `max_answer_len`, `handle_impossible_answer` and `align_to_words`. Ranking has
    `return_documents`. Lengths are in tokens.
    """

    on_long: OnLong | None = None
    aggregation_strategy: AggregationStrategy | None = None
    ignore_labels: tuple[str, ...] | None = None
    stride: int | None = None
    doc_stride: int | None = None
    max_answer_len: int | None = None
    handle_impossible_answer: bool | None = None
    align_to_words: bool | None = None
    return_documents: bool | None = None

    def wire(self) -> dict[str, JsonValue]:
        """Write the options that are given."""
        given: dict[str, JsonValue] = {
            name: value for name, value in asdict(self).items() if value is not None
        }
        if self.ignore_labels is not None:
            given["ignore_labels"] = list(self.ignore_labels)
        return given


class ShownOptions(TypedDict, total=False):
    """What an answer shows, next to the inputs of a prediction."""

    top_k: int | None
    """Labels, documents or answers per input. Absent: all labels or documents, one answer."""
    function_to_apply: FunctionToApply | str | None
    """`softmax`, `sigmoid` or `none`. Absent: by the task's kind."""
    parameters: Parameters | None
    """Further options: of long texts, and of the other kinds of tasks."""


class PredictOptions(ShownOptions, total=False):
    """The options of a prediction by a server, next to its inputs."""

    deadline_s: float | None
    """Seconds for the whole call, with further attempts."""
    routing_key: str | None
    """Requests of one key get one version while a canary runs."""


MAX_PART_INPUTS: Final = 64
"""Inputs of one request, as many as a server accepts by default."""


class Parts:
    """Divides any number of inputs, in order, into lists that a server accepts.

    A refused list is divided again, before the refused input if the refusal names one. A server
    that refuses the number of inputs gets no longer list again. After any other refusal, such as of
    too many tokens, the lists grow again.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        self._inputs = iter(in_order(inputs))
        self._refused: list[Input] = []
        self._size = self._max_size = MAX_PART_INPUTS
        self._num_accepted = 0

    def take(self) -> list[Input]:
        """Return the next list; it is empty at the end. Errors come after the inputs before."""
        part, self._refused = self._refused[: self._size], self._refused[self._size :]
        try:
            for item in islice(self._inputs, self._size - len(part)):
                part.append(item)
        except Exception as error:
            if not part:
                raise
            self._inputs = map(_raise, [error])
        return part

    def accept(self, part: list[Input], refused: Iterable[int | None]) -> int | None:
        """Return the place of the list among all inputs; None if it is divided instead.

        `refused` are the places of inputs that single tasks refuse. Such an input must be alone in
        its list, because these tasks answer no other input of the list.
        """
        positions = [it for it in refused if it is not None]
        if positions and len(part) > 1:
            self._divide(part, min(positions))
            return None
        place = self._num_accepted
        self._num_accepted += len(part)
        self._size = min(2 * self._size, self._max_size)
        return place

    def refuse(self, part: list[Input], error: NunatakError) -> None:
        """Divide a refused list; if it has only one input, raise the error, with its place."""
        if len(part) == 1:
            if error.position is not None:
                error.position = self._num_accepted
            raise error
        self._divide(part, len(part) // 2 if error.position is None else error.position)
        if error.code == "too_many_inputs":
            self._max_size = self._size

    def _divide(self, part: list[Input], size: int) -> None:
        self._refused = part + self._refused
        self._size = max(1, min(size, len(part) - 1))


def _raise(error: Exception) -> Input:
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class WireInputs:
    """Inputs in wire format; `num_inputs` is `None` for one input that is not in a list."""

    value: JsonValue
    num_inputs: int | None


def wire_inputs(inputs: Inputs) -> WireInputs:
    """Write one input or a list of inputs as JSON.

    Raises:
        InvalidInputError: an input is no text, pair, question or query, or the list is empty.
    """
    if isinstance(inputs, (str, tuple, Question, Query)):
        return WireInputs(value=_wire_input(inputs), num_inputs=None)
    items = [_wire_input(item, at) for at, item in enumerate(in_order(inputs))]
    if not items:
        raise InvalidInputError("inputs must hold at least one text, got an empty list")
    return WireInputs(value=items, num_inputs=len(items))


def in_order(items: Iterable[T]) -> Iterable[T]:
    """Return items whose order is the caller's.

    Raises:
        InvalidInputError: an iteration gives letters, names of fields or columns, or any order.
    """
    kind = type(items)
    # Of the class: a lazy table computes its columns. An array without dimensions has no items.
    is_list = hasattr(kind, "__iter__") and not hasattr(kind, "columns")
    is_list &= getattr(items, "shape", None) != ()
    if issubclass(kind, (str, bytes, Mapping, set, frozenset)) or not is_list:
        raise InvalidInputError(
            f"expected a list of items, got {kind.__name__}; pass a list, or one column"
        )
    return items


def predict_body(
    inputs: WireInputs, *, tasks: Sequence[str] | None = None, **shown: Unpack[ShownOptions]
) -> bytes:
    body: dict[str, JsonValue] = {"inputs": inputs.value}
    if tasks is not None:
        body["tasks"] = list(tasks)
    if wanted := wire_parameters(**shown):
        body["parameters"] = wanted
    return json_body(body)


def wire_parameters(
    top_k: int | None = None,
    function_to_apply: FunctionToApply | str | None = None,
    parameters: Parameters | None = None,
) -> dict[str, JsonValue]:
    wanted = (parameters or Parameters()).wire()
    if top_k is not None:
        wanted["top_k"] = top_k
    if function_to_apply is not None:
        wanted["function_to_apply"] = str(function_to_apply)
    return wanted


def json_body(body: dict[str, JsonValue]) -> bytes:
    """Write a JSON object as UTF-8.

    Raises:
        InvalidInputError: a text holds a lone surrogate, which UTF-8 cannot encode, or a value is
            none of JSON, such as a number of numpy.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"texts must be valid Unicode, got a lone surrogate at {error.start}; "
            "decode the source with errors='replace'"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"arguments must be texts and finite numbers of Python: {error}; convert others with "
            "int() or float()"
        ) from error


def task_target(reference: str) -> tuple[str, dict[str, str]]:
    """Find the path of `name`, `name@alias` or `name/3`, and the query, which has the version.

    The server checks the grammar of names. This function refuses only names that would change the
    path itself.

    Raises:
        InvalidInputError: the name is empty, has only dots, or is no text.
    """
    is_text = isinstance(reference, str)
    name, slash, version = reference.partition("/") if is_text else (reference, "", "")
    path = f"/v1/tasks/{path_segment('task reference', name)}"
    return path, {"version": version} if slash else {}


def path_segment(kind: str, value: str) -> str:
    """Quote one segment of a path; a server also reads a quoted slash as the end of a segment."""
    if not isinstance(value, str) or not value.strip(".") or "/" in value:
        raise InvalidInputError(f"{kind} must be a name such as 'tone', got {value!r}")
    return quote(value, safe="@", errors="replace")


def _wire_input(item: object, position: int | None = None) -> JsonValue:
    match item:
        case str():
            return item
        case tuple((str() as text, str() as text_pair)):
            return {"text": text, "text_pair": text_pair}
        case Question(question=str() as question, context=str() as context):
            return {"question": question, "context": context}
        case Query(query=str() as query, documents=documents):
            return {"query": query, "documents": _wire_documents(documents)}
        case _:
            raise InvalidInputError(
                "an input must be a text, a pair (text, text_pair), a Question or a Query, got "
                f"{_shape(item)}; pass several inputs as a list",
                position,
            )


def _wire_documents(documents: Sequence[object]) -> list[JsonValue]:
    # An iterator would be empty for another attempt.
    listed = () if isinstance(documents, Iterator) else in_order(documents)
    found: list[JsonValue] = [it for it in listed if isinstance(it, str)]
    if not found or len(found) != len(documents):
        raise InvalidInputError(
            f"documents must be a list of at least one text, got {_shape(documents)}"
        )
    return found


def _shape(item: object) -> str:
    if isinstance(item, Sequence):
        return f"{type(item).__name__} of {len(item)}"
    return type(item).__name__


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
    policy: str,
    inputs: str | Sequence[str] | None,
    *,
    messages: Messages | None = None,
    deadline_s: float | None = None,
) -> Call[PolicyVerdict]:
    if isinstance(inputs, tuple):
        raise InvalidInputError(
            "a policy reads single texts, and a tuple is a pair; pass several texts as a list"
        )
    body: dict[str, Any]
    match inputs, messages:
        case str(), None:
            body = {"inputs": inputs}
        case _, None if inputs is not None:
            body = {"inputs": list(in_order(inputs))}
        case None, _ if messages is not None:
            body = {"messages": list(in_order(messages))}
        case _:
            raise InvalidInputError(
                "a policy judges a text, a list of texts, or messages; pass one"
            )
    return Call(
        method="POST",
        path=f"/v1/verdicts/{path_segment('policy', policy)}",
        content=json_body(body),
        deadline_s=deadline_s,
        read=_read_as(PolicyVerdict),
    )


def embed(
    model: str, texts: Sequence[str], *, deadline_s: float | None = None
) -> Call[tuple[tuple[float, ...], ...]]:
    sent: list[Any] = list(in_order(texts))
    return Call(
        method="POST",
        path="/v1/embeddings",
        content=json_body({"model": model, "input": sent}),
        deadline_s=deadline_s,
        read=partial(replies.read_vectors, num_texts=len(sent)),
    )


def decide(
    state: JsonText, questions: Questions, *, model: str, deadline_s: float | None = None
) -> Call[dict[str, replies.DecidedQuestion]]:
    asked: dict[str, Any] = dict(questions)
    return Call(
        method="POST",
        path="/v1/systemone",
        content=json_body({"model": model, "state": state, "questions": asked}),
        deadline_s=deadline_s,
        read=partial(replies.read_decided, names=asked),
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
    return lambda reply: replies.read_result(kind, replies.read_object(reply.content))


def task_path(name: str) -> str:
    return f"/v1/tasks/{path_segment('task name', name)}"


def alias_path(name: str, alias: str, *role: CandidateRole) -> str:
    return "/".join((task_path(name), "aliases", path_segment("alias", alias), *role))
