"""The answers of a server over HTTP, which the client reads with the same classes.

A server sends every field of a class and no other field. A client ignores fields that it does not
know, so that a newer server can serve an older client. `memory` has the classes of memory reports,
and `requests` has the classes of requests.

Server and command make many of these from the attributes of other objects, by `model_validate`.
`found_at` names the attributes where they differ from the fields.
"""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, JsonValue

from nunatak_contract import enums
from nunatak_contract.errors import place_of_input
from nunatak_contract.policies import Policy
from nunatak_contract.questions import QuestionCard
from nunatak_contract.record import EachInput, Moment, Result, found_at

QUEUE_HEADER: Final = "x-queue-ms"
TOKENIZE_HEADER: Final = "x-tokenize-ms"
COMPUTE_HEADER: Final = "x-compute-ms"
BATCH_SIZE_HEADER: Final = "x-batch-size"
REQUEST_ID_HEADER: Final = "x-request-id"
REPLICA_HEADER: Final = "x-replica-id"
RELEASE_HEADER: Final = "x-nunatak-release"
"""The release of the server."""
DEADLINE_HEADER: Final = "x-deadline-ms"
ROUTING_KEY_HEADER: Final = "x-routing-key"
LINES_TYPE: Final = "application/x-ndjson"
"""Media type of an answer whose lines are objects, one for each task."""
EVENTS_TYPE: Final = "text/event-stream"


class Score(Result):
    """One label and its score (a probability, or the logit for `function_to_apply="none"`)."""

    label: str
    score: float


class Span(Result):
    """A part of a text by its positions in characters, with its label and score."""

    score: float
    word: str
    start: int
    end: int


class LabelledToken(Span):
    """One token or word of a text, by its index and its positions in characters."""

    entity: str
    index: int


class LabelledGroup(Span):
    """Adjacent tokens of one label."""

    entity_group: str


class Answer(Result):
    """A part of the context by its positions in characters; empty if there is no answer."""

    answer: str
    score: float
    start: int
    end: int


class RankedDocument(Result):
    """One document by its index in the request; its text only on request."""

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
"""The output of a task for one input, by the kind of head."""


PredictedValue = str | tuple[str, ...] | float
"""What a task predicts for one input: its label, all labels that apply, or its value."""


class InputFacts(Result, json_schema_serialization_defaults_required=True):
    """What a task tells about each input, next to its output; empty if a server does not tell."""

    tokens: EachInput[int] = Field(
        default_factory=tuple,
        description="tokens read, special ones included; one count per input for a list",
    )
    truncated: EachInput[bool] = Field(
        default_factory=tuple,
        description="whether a part of the input was not read; one per input for a list",
    )
    unread: EachInput[int] = Field(
        default_factory=tuple,
        description="characters that no token stands for: hidden text, and letters of words that "
        "the vocabulary lacks; one count per input for a list",
    )


class PredictResponse(InputFacts):
    """The task's output; a list of outputs if a list was sent."""

    task: str
    version: int
    head: enums.HeadKind
    problem_type: enums.ProblemType | None = Field(
        description="what sequence classification predicts; null for other heads"
    )
    predicted: PredictedValue | tuple[PredictedValue, ...] | None = Field(
        description="by problem type: the label with the highest score; the labels with a score "
        "of at least their threshold, best first; the value. One per input for a list, whatever "
        "`parameters` shows of the scores; null for other heads"
    )
    outputs: Output | tuple[Output, ...]


class FieldProblem(Result):
    """The error in one field of a request."""

    location: str
    message: str


class Problem(Result):
    """A failure (RFC 9457, `application/problem+json`). Only wrong fields give `errors`."""

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
    position: int | None = Field(default=None, description="of the refused input, from 0")
    request_id: str | None = None

    def moved(self, by: int) -> "Problem":
        """Return the problem with the place of the input among more inputs."""
        if self.position is None:
            return self
        place = self.position + by
        detail = self.detail.removeprefix(place_of_input(self.position))
        return self.model_copy(
            update={"position": place, "detail": f"{place_of_input(place)}{detail}"}
        )


class TaskAnswer(PredictResponse):
    """One task's answer within a request for several."""

    reference: str


class FailedTask(Result):
    """The failure of one task in a request for several."""

    reference: str
    error: Problem


class PredictManyResponse(Result):
    """Results in the order of the request's tasks."""

    results: tuple[TaskAnswer | FailedTask, ...]


class AppliedRule(Result):
    """A rule that applies to one text, by the index of the text in the request."""

    rule: str
    action: enums.VerdictAction
    message: str | None
    input: int | None = Field(description="the place of the text; null for messages")
    score: float = Field(
        description="of the conditions: the largest for `any`, the smallest for `all`"
    )


class Mask(Result):
    """A masked part of a text, by its positions in characters, with its label."""

    start: int
    end: int
    label: str


class PolicyVerdict(Result):
    """The decision of a policy about all texts of a request."""

    policy: str
    version: int
    mode: enums.PolicyMode
    action: enums.VerdictAction = Field(
        description="what to do: the decision, but always `allow` in a dry run"
    )
    decided: enums.VerdictAction = Field(description="the strongest action of all texts")
    by_failure: bool = Field(
        description="whether `on_failure` has decided, because a task has no answer"
    )
    message: str | None = Field(
        description="of the first rule with the decided action; by failure, which tasks gave no "
        "answer (in time)"
    )
    rules: tuple[AppliedRule, ...]
    texts: str | tuple[str, ...] | None = Field(
        description="all texts, with the found parts masked; null unless `action` is `mask`"
    )
    masks: tuple[tuple[Mask, ...], ...] | None = Field(
        default=None, description="for each text that was sent, what `texts` masks, in order"
    )
    messages: tuple[dict[str, JsonValue], ...] | None = Field(
        default=None, description="the messages that were sent, masked; null unless `mask`"
    )
    tasks: tuple[str, ...] = Field(description="the versions that answered, as `name/version`")
    failures: tuple[FailedTask, ...] = Field(description="tasks without an answer that decides")


class StreamEvent(Result):
    """An event of a stream of verdicts. The texts of all events are the text to show."""

    event: enums.StreamEventKind
    text: str = Field(default="", description="`text`, `mask`: what to show next")
    final: bool = Field(default=False, description="whether this is the last event")
    verdict: PolicyVerdict | None = Field(
        default=None, description="`verdict`: about the text so far, or about the whole text"
    )
    action: enums.VerdictAction | None = Field(default=None, description="`error`: always `block`")
    error: Problem | None = Field(default=None, description="`error`: why there is no verdict")


class PolicyDetail(Result):
    """The newest version of a policy."""

    version: int
    published_at: Moment
    by: str
    policy: Policy = found_at("policy", "document")


class QuestionDetail(Result):
    """One version of a question card, with the digest of its question."""

    version: int
    published_at: Moment
    by: str
    digest: str = found_at("digest", "document", "question", "digest")
    card: QuestionCard = found_at("card", "document")


class PolicyListing(Result):
    """All policies of the registry, by name."""

    policies: tuple[PolicyDetail, ...]


class Timings(Result):
    """The times of the server's steps; `None` if a proxy removed the header."""

    queue_ms: float | None = None
    tokenize_ms: float | None = None
    compute_ms: float | None = None
    batch_size: int | None = Field(default=None, description="rows of the caller in the batch")


class RunningCandidate(Result):
    """A version that runs next to an alias, and its share of the alias's requests."""

    alias: str
    role: enums.CandidateRole
    version: int
    share: float


class TaskSummary(Result, json_schema_serialization_defaults_required=True):
    """One task, with the head, labels, inputs, method and split depth of `version`.

    `version` is the version that the bare name of the task means.
    """

    name: str
    version: int = found_at("version", "manifest", "version")
    versions: tuple[int, ...]
    aliases: dict[str, int]
    candidates: tuple[RunningCandidate, ...]
    head: str = found_at("head", "manifest", "head", "kind")
    labels: tuple[str, ...] = found_at("labels", "manifest", "head", "labels")
    reads: enums.Reads | None = found_at(
        *("reads", "manifest", "reads"),
        default=None,
        description="sequence classification: a single text or a pair; null: both, or another head",
    )
    method: str = found_at("method", "manifest", "method", "kind")
    split_depth: int | None = found_at("split_depth", "manifest", "split_depth")
    resident_versions: tuple[int, ...] = Field(default_factory=tuple)


class TaskListing(Result):
    """All tasks of the registry."""

    tasks: tuple[TaskSummary, ...]


class TaskDetail(TaskSummary):
    """One task, and the manifest of one of its versions."""

    manifest: dict[str, JsonValue]


class AliasChange(Result):
    """An alias after a move."""

    task: str
    alias: str
    version: int = found_at("version", "to_version")
    previous_version: int | None = found_at("previous_version", "from_version")


class PastMove(AliasChange):
    """A past move of an alias: its kind, its time, and who moved the alias."""

    kind: Literal["promote", "rollback"]
    at: Moment
    by: str


class CandidateFacts(Result):
    """A canary or shadow: where it runs, and its share of the requests."""

    task: str = found_at("task", "candidate", "task")
    alias: str = found_at("alias", "candidate", "alias")
    role: enums.CandidateRole = found_at("role", "candidate", "role")
    version: int = found_at("version", "candidate", "version")
    share: float = found_at("share", "candidate", "share")


class CandidateChange(CandidateFacts):
    """A canary or shadow: newly set, or with its last values when it ended."""

    active: bool


class PastCandidate(CandidateFacts):
    """A past change of a canary or shadow: its kind, its time, and who made the change."""

    kind: Literal["set", "end"]
    at: Moment
    by: str


class TaskHistory(Result):
    """All moves of a task's aliases and all changes of their candidates, oldest first."""

    task: str
    events: tuple[PastMove, ...]
    candidates: tuple[PastCandidate, ...]


class DriftCount(Result):
    """The number of inputs whose largest difference of scores lies in one interval.

    The interval ends with `up_to` and begins after the previous bound.
    """

    up_to: float | None = Field(description="null = beyond the last bound")
    inputs: int


class ShadowReport(Result):
    """The results of a shadow on one server since the shadow started. Counts are inputs."""

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
    """The versions of a task that are no longer pinned."""

    task: str
    versions: tuple[int, ...]


class Eviction(Unpinning):
    """The versions of a task that were dropped from memory."""


class Liveness(Result):
    """The answer of a live process."""

    status: str


class ReadinessReport(Liveness):
    """The answer of a process that accepts requests, or does not."""

    warnings: Annotated[
        tuple[str, ...], Field(description="the registry's problem; null if it has none")
    ]


class ServerInfo(Result):
    """The facts about a server: its release, backbones and limits."""

    name: str
    version: str
    backbone: dict[str, JsonValue]
    other_backbones: tuple[dict[str, JsonValue], ...] = ()
    device: str
    dtype: str
    kernels: Annotated[
        tuple[str, ...],
        Field(description="fast kernels in use; all else runs torch's own operations"),
    ] = ()
    registry: str
    limits: dict[str, int]


class ReplicaLoad(Result):
    """What a replica said about itself at its last beat. Bytes are of memory."""

    ready: bool = False
    waiting: int = Field(default=0, description="requests that wait for a batch or a load")
    running: int = Field(default=0, description="requests with a row in a running batch")
    versions: int = Field(default=0, description="task versions in memory")
    version_bytes: int = 0
    process_bytes: int = 0


class ReplicaReport(Result):
    """One server process of a registry."""

    id: str
    address: str
    release: str
    started_at: datetime
    seen_s: float = Field(description="seconds since its last beat")
    lease_s: float | None = Field(description="null: it answers while the registry is out of reach")
    revision: int = Field(description="the last revision that it confirmed; 0 while it is behind")
    is_current: bool
    load: ReplicaLoad


class ReplicaListing(Result):
    """The replicas of a registry, and the present revision, which every change increases."""

    revision: int
    replicas: tuple[ReplicaReport, ...]
