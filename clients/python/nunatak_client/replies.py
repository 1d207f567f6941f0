"""Replies: an answer is checked against the contract, and a refusal becomes an error.

Each kind of head has one class of results. The parts of an answer are classes of
`nunatak_contract`. The classes here combine these parts for the caller.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import AliasChoices, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from nunatak_client.errors import ApiError, InvalidResponseError, WrongHeadError, error_class
from nunatak_contract import wire
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.record import Result, problems_of

ResultT = TypeVar("ResultT", bound=Result)


class Entity(wire.Span):
    """A labelled part of the text: one token or word, or an aggregated group of them."""

    label: str = Field(validation_alias=AliasChoices("entity", "entity_group", "label"))
    index: int | None = Field(default=None, description="of a single token or word")


Scores = tuple[wire.Score, ...]
"""The labels of one input, best first."""
Entities = tuple[Entity, ...]
"""The labelled parts of one text, in its order."""
Answers = tuple[wire.Answer, ...]
"""The answers to one question, best first."""
Ranking = tuple[wire.RankedDocument, ...]
"""The documents of one query, best first."""


class Classification(Result):
    """The answers of a sequence classification or regression task, one entry per input."""

    head: Literal[HeadKind.SEQUENCE_CLASSIFICATION] = HeadKind.SEQUENCE_CLASSIFICATION
    outputs: tuple[Annotated[Scores, Field(min_length=1)], ...]
    problem_type: ProblemType | None = None
    predicted: tuple[wire.PredictedValue, ...] = ()
    """By the problem type: the label, all labels that apply, or the value. This field and the
    problem type are empty if the server does not send them."""


class TokenClassification(Result):
    """The answers of a token classification task, one entry per text."""

    head: Literal[HeadKind.TOKEN_CLASSIFICATION] = HeadKind.TOKEN_CLASSIFICATION
    outputs: tuple[Entities, ...]


class QuestionAnswering(Result):
    """The answers of a question answering task, one entry per question."""

    head: Literal[HeadKind.QUESTION_ANSWERING] = HeadKind.QUESTION_ANSWERING
    outputs: tuple[Answers, ...]


class RankingOutputs(Result):
    """The answers of a ranking task, one entry per query."""

    head: Literal[HeadKind.RANKING] = HeadKind.RANKING
    outputs: tuple[Annotated[Ranking, Field(min_length=1)], ...]


HeadOutputs = Annotated[
    Classification | TokenClassification | QuestionAnswering | RankingOutputs,
    Field(discriminator="head"),
]
"""The answer of a task. The class shows the kind of task, for `match`."""
HeadT = TypeVar("HeadT", Classification, TokenClassification, QuestionAnswering, RankingOutputs)


class Answered(wire.InputFacts):
    """Base of classes with predictions: the parts of the first input, by the kind of the task.

    Every property but `predicted` and `labels` is about the first input, and each raises
    `WrongHeadError` for a task of another kind.
    """

    @property
    def is_truncated(self) -> bool:
        """Whether a part of any input was not read; False if the server does not report it."""
        return any(self.truncated)

    @abstractmethod
    def require(self) -> HeadOutputs:
        """Return the outputs of the task, or raise its error."""

    @property
    def scores(self) -> Scores:
        """Labels, best first."""
        return self._said(Classification).outputs[0]

    @property
    def best(self) -> wire.Score:
        """The best label, or the value of a regression."""
        return self.scores[0]

    @property
    def predicted(self) -> tuple[wire.PredictedValue, ...]:
        """For every input the label, a tuple of all labels that apply, or the value."""
        return self._said(Classification).predicted

    @property
    def labels(self) -> tuple[str, ...]:
        """The best label of every input, also where no label or several labels apply."""
        return tuple(scores[0].label for scores in self._said(Classification).outputs)

    @property
    def entities(self) -> Entities:
        """Labelled parts of the text, in its order."""
        return self._said(TokenClassification).outputs[0]

    @property
    def answers(self) -> Answers:
        """Answers to the question, best first; empty if the context has no words."""
        return self._said(QuestionAnswering).outputs[0]

    @property
    def ranking(self) -> Ranking:
        """Documents of the query, best first."""
        return self._said(RankingOutputs).outputs[0]

    def _said(self, kind: type[HeadT]) -> HeadT:
        found = self.require()
        if not isinstance(found, kind):
            raise WrongHeadError(found.head, kind.model_fields["head"].default)
        return found


Outputs = tuple[Scores, ...] | tuple[Entities, ...] | tuple[Answers, ...] | tuple[Ranking, ...]
"""One entry per input, also for a single input. The task's head decides the type."""


class Prediction(Answered):
    """The answer of one task version."""

    task: str
    version: int
    head_outputs: HeadOutputs
    timings: wire.Timings = wire.Timings()
    request_id: str | None = None

    @property
    def head(self) -> HeadKind:
        """The kind of the task."""
        return self.head_outputs.head

    @property
    def outputs(self) -> Outputs:
        """The output of the task for every input."""
        return self.head_outputs.outputs

    def require(self) -> HeadOutputs:
        """Return the outputs of the task."""
        return self.head_outputs


def error_of(problem: wire.Problem, *, retry_after_s: float | None = None) -> ApiError:
    fields = "; ".join(f"{field.location}: {field.message}" for field in problem.errors or ())
    detail = problem.detail or problem.title or f"the server answered {problem.status}"
    return error_class(problem.status)(
        code=problem.code,
        status=problem.status,
        detail=f"{detail} ({fields})" if fields else detail,
        position=problem.position,
        request_id=problem.request_id,
        retry_after_s=retry_after_s,
    )


class TaskResult(Answered):
    """The part of one task in a fan-out: either `head_outputs` or `error`."""

    reference: str
    task: str | None = None
    version: int | None = None
    head_outputs: HeadOutputs | None = None
    error: wire.Problem | None = None
    timings: wire.Timings = wire.Timings()
    """The timings of a streamed result; other results share the timings of the whole answer."""

    @model_validator(mode="after")
    def _is_answer_or_error(self) -> "TaskResult":
        if (self.head_outputs is None) == (self.error is None):
            raise ValueError("a result holds either outputs or an error")
        return self

    @property
    def outputs(self) -> Outputs | None:
        """The output of the task for every input; None if the task failed."""
        return None if self.head_outputs is None else self.head_outputs.outputs

    def require(self) -> HeadOutputs:
        """Return the outputs of the task.

        Raises:
            ApiError: this task failed.
        """
        if self.head_outputs is None:
            raise error_of(self.error or wire.Problem(code="api_error", status=500))
        return self.head_outputs

    def about(self, place: int) -> "TaskResult":
        """Return the result about one of the inputs alone."""
        said = self.head_outputs
        own = _at(self, place)
        return own if said is None else own.model_copy(update={"head_outputs": _at(said, place)})


def _at(result: ResultT, place: int) -> ResultT:
    """Return a result with one input of each value that has one for each input."""
    listed: dict[str, object] = {
        name: it[place : place + 1] for name, it in result if isinstance(it, tuple)
    }
    return result.model_copy(update=listed)


class FanOut(Result):
    """The answers of several tasks to the same inputs, in the order of the request."""

    results: tuple[TaskResult, ...]
    timings: wire.Timings = wire.Timings()
    request_id: str | None = None

    def __getitem__(self, reference: str) -> TaskResult:
        """The result of the task with this reference in the request."""
        return {it.reference: it for it in reversed(self.results)}[reference]

    @property
    def refused(self) -> tuple[int, ...]:
        """The places of inputs that a task refuses."""
        problems = [result.error for result in self.results if result.error is not None]
        return tuple(it.position for it in problems if it.position is not None)

    def placed(self, place: int) -> "FanOut":
        """Return the answers with the place of the first input among more inputs in the errors."""
        results = (
            it if it.error is None else it.model_copy(update={"error": it.error.moved(place)})
            for it in self.results
        )
        return self.model_copy(update={"results": tuple(results)})


class DecidedQuestion(Result):
    """The answer to a typed question, as System One writes it: `type` says which value it has."""

    type: Literal["noul", "choice", "score"]
    noul: float | None = None
    """The probability of yes."""
    choice: str | None = None
    """The likeliest option."""
    score: float | None = None
    """The expected level, from 0 for the lowest."""
    probabilities: dict[str, float] | None = None
    """Of each option, or of the place of each level."""
    confidence: float | None = None
    x_source: dict[str, JsonValue] | None = None
    """Who answers, such as a task and its card."""

    @model_validator(mode="after")
    def _has_its_value(self) -> "DecidedQuestion":
        if {"noul": self.noul, "choice": self.choice, "score": self.score}[self.type] is None:
            raise ValueError(f"the answer has no {self.type}")
        return self


class DecidedQuestions(Result):
    """The answers to all questions of a request, by their names."""

    answers: dict[str, DecidedQuestion]


class TextVector(Result):
    """The vector of one text."""

    embedding: tuple[float, ...]


class TextVectors(Result):
    """The vectors of all texts of a request, in order."""

    data: tuple[TextVector, ...]


SAID: Final = ("head", "outputs", "problem_type", "predicted")
"""The members of an answer that its head decides."""

REFUSED: Final = (404, 405, 422)
"""Statuses of a route or a field that another release may have."""
_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response from any library; `headers` ignores case."""

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
    """Raise the `ApiError` of an unsuccessful reply."""
    if reply.is_success:
        return
    try:
        problem = wire.Problem.model_validate_json(reply.content)
    except ValidationError:
        code, detail = _translated(reply) or ("http_error", _unexplained(reply))
        raise error_class(reply.status)(
            code=code,
            status=reply.status,
            detail=detail,
            request_id=reply.headers.get(wire.REQUEST_ID_HEADER),
            retry_after_s=reply.retry_after_s,
        ) from None
    if reply.status in REFUSED:
        problem = _with_releases(problem, reply.headers.get(wire.RELEASE_HEADER))
    raise error_of(problem, retry_after_s=reply.retry_after_s)


def _translated(reply: Reply) -> tuple[str, str] | None:
    """Return code and reason of a failure in the shape of OpenAI or of System One."""
    try:
        body = read_object(reply.content)
    except InvalidResponseError:
        return None
    told = body.get("error") or body.get("detail")
    is_own = wire.RELEASE_HEADER in reply.headers  # others have codes of their own
    match told[0] if isinstance(told, list) and told else told:
        case {"code": str(code), "message": str(reason)} | {
            "type": str(code),
            "msg": str(reason),
        } if is_own:
            return code, reason
        case _:
            return None


def _unexplained(reply: Reply) -> str:
    if reply.status // 100 == 3 and (target := reply.headers.get("location")):
        # To follow would repeat the key and the texts elsewhere, and often as a GET without a body.
        return f"the server redirects to {target}, and the client does not follow; use that address"
    return f"the server answered HTTP {reply.status} without a reason; is it Nunatak?"


def _with_releases(problem: wire.Problem, server: str | None) -> wire.Problem:
    """Name the releases in a refusal if they differ: the server may not know what was asked."""
    own = version("nunatak")
    if server is None or server == own:
        return problem
    said = problem.detail or problem.title
    releases = f"the server has release {server}, and this client {own}"
    return problem.model_copy(update={"detail": f"{said} ({releases})"})


def read_object(content: bytes, *, wanted: str = "a JSON object") -> dict[str, JsonValue]:
    try:
        return _OBJECT.validate_json(content)
    except ValidationError as error:
        raise _unexpected(wanted, error) from error


def read_result(kind: type[ResultT], content: object) -> ResultT:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise _unexpected(kind.__name__, error) from error


def read_prediction(reply: Reply, *, num_inputs: int | None) -> Prediction:
    body = with_head_outputs(read_object(reply.content), num_inputs)
    return read_result(Prediction, {**body, **_trail(reply)})


def read_fan_out(reply: Reply, *, num_inputs: int | None, tasks: Sequence[str]) -> FanOut:
    body = read_object(reply.content)
    if isinstance(entries := body.get("results"), list):
        body["results"] = [
            with_head_outputs(it, num_inputs) if isinstance(it, dict) else it for it in entries
        ]
    fan_out = read_result(FanOut, {**body, **_trail(reply)})
    answered = [result.reference for result in fan_out.results]
    if answered != list(tasks):
        raise InvalidResponseError(f"asked for tasks {list(tasks)}, got answers for {answered}")
    return fan_out


def read_vectors(reply: Reply, *, num_texts: int) -> tuple[tuple[float, ...], ...]:
    found = read_result(TextVectors, read_object(reply.content)).data
    if len(found) != num_texts:
        raise InvalidResponseError(f"asked about {num_texts} texts, got {len(found)} vectors")
    return tuple(it.embedding for it in found)


def read_decided(reply: Reply, *, names: Collection[str]) -> dict[str, DecidedQuestion]:
    found = read_result(DecidedQuestions, read_object(reply.content)).answers
    if found.keys() != set(names):
        raise InvalidResponseError(f"asked {list(names)}, got answers to {list(found)}")
    return found


def read_line(line: bytes, *, num_inputs: int | None) -> TaskResult:
    """Read one line of a stream: the answer or failure of one task."""
    entry = read_object(line, wanted="a JSON object on each line")
    return read_result(TaskResult, with_head_outputs(entry, num_inputs))


def read_timings(headers: Mapping[str, str]) -> wire.Timings:
    batch_size = _number(headers.get(wire.BATCH_SIZE_HEADER))
    return wire.Timings(
        queue_ms=_number(headers.get(wire.QUEUE_HEADER)),
        tokenize_ms=_number(headers.get(wire.TOKENIZE_HEADER)),
        compute_ms=_number(headers.get(wire.COMPUTE_HEADER)),
        batch_size=None if batch_size is None else int(batch_size),
    )


def with_head_outputs(body: Mapping[str, Any], num_inputs: int | None) -> dict[str, Any]:
    """Return the body with head and outputs in one object, and outputs always as a list.

    `num_inputs` is None if one input was sent that is in no list.

    Raises:
        InvalidResponseError: the number of outputs is not the number of inputs.
    """
    if body.get("outputs") is None:
        return dict(body)
    # Servers with only one kind of task do not send the kind.
    said: dict[str, Any] = {"head": HeadKind.SEQUENCE_CLASSIFICATION}
    said |= {name: body[name] for name in SAID if body.get(name) is not None}
    if num_inputs is None:
        said |= {name: [said[name]] for name in ("outputs", "predicted") if name in said}
    for it in (said["outputs"], said.get("predicted", said["outputs"])):
        if not (isinstance(it, (list, tuple)) and len(cast("Any", it)) == (num_inputs or 1)):
            raise InvalidResponseError(
                f"asked about {num_inputs or 1} inputs, got outputs for another number"
            )
    return {**body, "head_outputs": said}


def _trail(reply: Reply) -> dict[str, object]:
    return {
        "timings": read_timings(reply.headers),
        "request_id": reply.headers.get(wire.REQUEST_ID_HEADER),
    }


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _unexpected(expected: str, error: ValidationError) -> InvalidResponseError:
    place, problem = problems_of(error)[0]
    return InvalidResponseError(
        f"expected {expected}, but {place or 'the body'}: {problem}; is this a Nunatak server?"
    )
