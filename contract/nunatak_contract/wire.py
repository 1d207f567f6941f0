"""What a server answers over HTTP: the server's schema, and what the client reads.

A server sends every field of a class and no other field: the schema says so. A client ignores
fields that it does not know, so that a newer server can serve an older client. The classes of
memory reports are in `memory`, those of requests in `requests`.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from nunatak_contract.enums import CandidateRole, HeadKind, ProblemType, Reads

QUEUE_HEADER: Final = "x-queue-ms"
TOKENIZE_HEADER: Final = "x-tokenize-ms"
COMPUTE_HEADER: Final = "x-compute-ms"
BATCH_SIZE_HEADER: Final = "x-batch-size"
REQUEST_ID_HEADER: Final = "x-request-id"
DEADLINE_HEADER: Final = "x-deadline-ms"
ROUTING_KEY_HEADER: Final = "x-routing-key"
LINES_TYPE: Final = "application/x-ndjson"
"""Media type of an answer whose lines are objects, one for each task."""


class Result(BaseModel):
    """Base of every answer."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        json_schema_extra={"additionalProperties": False},
    )


class Score(Result):
    """One label and its score (a probability, or the logit for `function_to_apply="none"`)."""

    label: str
    score: float


class Span(Result):
    """A part of a text by its characters, and how sure its label is."""

    score: float
    word: str
    start: int
    end: int


class LabelledToken(Span):
    """One token or word of a text, by its place and its characters."""

    entity: str
    index: int


class LabelledGroup(Span):
    """Neighbouring tokens of one label."""

    entity_group: str


class Answer(Result):
    """A part of the context by its characters; empty where the context has no answer."""

    answer: str
    score: float
    start: int
    end: int


class RankedDocument(Result):
    """One document by its position in the query; its text only if it was asked for."""

    index: int
    score: float
    document: str | None = None


Output = (
    tuple[Score, ...]
    | tuple[LabelledToken, ...]
    | tuple[LabelledGroup, ...]
    | tuple[Answer, ...]
    | tuple[RankedDocument, ...]
)
"""What a task says about one input, by its head."""


PredictedValue = str | tuple[str, ...] | float
"""What a task predicts for one input: its label, all labels that apply, or its value."""


class PredictResponse(Result):
    """What the task says; one output per input if a list was sent."""

    task: str
    version: int
    head: HeadKind
    problem_type: ProblemType | None = Field(
        description="what sequence classification predicts; null for other heads"
    )
    predicted: PredictedValue | tuple[PredictedValue, ...] | None = Field(
        description="by problem type: the label with the highest score; the labels with a score "
        "of at least their threshold, best first; the value. One per input for a list, whatever "
        "`parameters` shows of the scores; null for other heads"
    )
    outputs: Output | tuple[Output, ...]
    tokens: int | tuple[int, ...] = Field(
        description="tokens read, special ones included; one count per input for a list"
    )
    truncated: bool | tuple[bool, ...] = Field(
        description="whether a part of the input was not read; one per input for a list"
    )


class FieldProblem(Result):
    """What is wrong with one field of a request."""

    location: str
    message: str


class Problem(Result):
    """A failure (RFC 9457, `application/problem+json`); `errors` only where fields are wrong."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "required": ["type", "title", "status", "detail", "code"],
        }
    )

    type: str = ""
    title: str = ""
    status: int
    detail: str = ""
    code: str
    errors: tuple[FieldProblem, ...] | None = None
    request_id: str | None = None


class TaskAnswer(PredictResponse):
    """One task's answer within a request for several."""

    reference: str


class FailedTask(Result):
    """Why one task of several has no answer."""

    reference: str
    error: Problem


class PredictManyResponse(Result):
    """Results in the order of the request's tasks."""

    results: tuple[TaskAnswer | FailedTask, ...]


class Timings(Result):
    """Where the server spent the time; `None` where a proxy removed the header."""

    queue_ms: float | None = None
    tokenize_ms: float | None = None
    compute_ms: float | None = None
    batch_size: int | None = Field(default=None, description="rows of the batch it ran in")


class RunningCandidate(Result):
    """A version that runs next to an alias, and its share of the alias's requests."""

    alias: str
    role: CandidateRole
    version: int
    share: float


class TaskSummary(Result):
    """One task; head, labels, inputs, method and split depth are those of `version`.

    `version` is the version that the bare name of the task means.
    """

    name: str
    version: int
    versions: tuple[int, ...]
    aliases: dict[str, int]
    candidates: tuple[RunningCandidate, ...]
    head: str
    labels: tuple[str, ...]
    reads: Reads | None = Field(
        default=None,
        description="sequence classification: a single text or a pair; null: both, or another head",
    )
    method: str
    split_depth: int | None
    resident_versions: tuple[int, ...]


class TaskListing(Result):
    """All tasks of the registry."""

    tasks: tuple[TaskSummary, ...]


class TaskDetail(TaskSummary):
    """One task, and the manifest of one of its versions."""

    manifest: dict[str, JsonValue]


class AliasChange(Result):
    """An alias after it was moved."""

    task: str
    alias: str
    version: int
    previous_version: int | None


class CandidateChange(Result):
    """A canary or shadow after it was set, or as it was when it ended."""

    task: str
    alias: str
    role: CandidateRole
    version: int
    share: float
    active: bool


class DriftCount(Result):
    """Inputs whose largest difference of scores is at most `up_to` and above the bound before."""

    up_to: float | None = Field(description="null = beyond the last bound")
    inputs: int


class ShadowReport(Result):
    """How a shadow has done on one server since the shadow started; counts are of inputs."""

    task: str
    alias: str
    version: int
    shadow_version: int
    share: float
    compared: int
    agreement: float | None
    errors: int
    dropped: int
    mean_drift: float | None
    max_drift: float | None
    drift_histogram: tuple[DriftCount, ...]


class ResidencyReport(Result):
    """A task version in the server's memory."""

    task: str
    version: int
    resident: bool
    pinned: bool
    bytes: int


class Unpinning(Result):
    """The versions of a task that were pinned and may be evicted again."""

    task: str
    versions: tuple[int, ...]


class Eviction(Result):
    """The versions of a task that were dropped from memory."""

    task: str
    versions: tuple[int, ...]


class Liveness(Result):
    """Whether the process lives."""

    status: str


class ReadinessReport(Liveness):
    """Whether the process takes requests."""

    warnings: Annotated[
        tuple[str, ...], Field(description="what is wrong with the registry, if it is")
    ]


class ServerInfo(Result):
    """What a server is."""

    name: str
    version: str
    backbone: dict[str, JsonValue]
    device: str
    dtype: str
    registry: str
    limits: dict[str, int]
