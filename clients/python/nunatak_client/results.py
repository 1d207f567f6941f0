"""What the server answers, as frozen values.

Fields the client does not know are ignored, so that a newer server serves an older client.
"""

from enum import StrEnum

from pydantic import Field, JsonValue, model_validator

from nunatak_client.errors import ApiError, error_class
from nunatak_client.outputs import (
    Answered,
    Answers,
    Entities,
    HeadKind,
    Predicted,
    Ranking,
    Result,
    Scores,
)

Outputs = tuple[Scores, ...] | tuple[Entities, ...] | tuple[Answers, ...] | tuple[Ranking, ...]
"""One entry per input, also for a single one; of which type, the task's head tells."""


class Timings(Result):
    """Where the server spent the time; `None` where a proxy removed the header."""

    queue_ms: float | None = None
    tokenize_ms: float | None = None
    compute_ms: float | None = None
    batch_size: int | None = Field(default=None, description="rows of the batch it ran in")


class Prediction(Answered):
    """The answer of one task version."""

    task: str
    version: int
    predicted: Predicted
    timings: Timings = Timings()
    request_id: str | None = None

    @property
    def head(self) -> HeadKind:
        """The kind of the task."""
        return self.predicted.head

    @property
    def outputs(self) -> Outputs:
        """What the task says about every input."""
        return self.predicted.outputs

    def require(self) -> Predicted:
        """Return what the task says."""
        return self.predicted


class FieldProblem(Result):
    """What is wrong with one field of a request."""

    location: str
    message: str


class Problem(Result):
    """A refusal as the server words it (RFC 9457)."""

    code: str
    status: int
    title: str = ""
    detail: str = ""
    errors: tuple[FieldProblem, ...] = ()
    request_id: str | None = None

    def to_error(self, *, retry_after_s: float | None = None) -> ApiError:
        """The error to raise for this problem."""
        fields = "; ".join(f"{field.location}: {field.message}" for field in self.errors)
        detail = self.detail or self.title or f"the server answered {self.status}"
        return error_class(self.status)(
            code=self.code,
            status=self.status,
            detail=f"{detail} ({fields})" if fields else detail,
            request_id=self.request_id,
            retry_after_s=retry_after_s,
        )


class TaskResult(Answered):
    """The part of one task in a fan-out: either `predicted` or `error`."""

    reference: str
    task: str | None = None
    version: int | None = None
    predicted: Predicted | None = None
    error: Problem | None = None
    timings: Timings = Timings()
    """Its own, where it was streamed; else those of the whole answer count."""

    @model_validator(mode="after")
    def _is_answer_or_error(self) -> "TaskResult":
        if (self.predicted is None) == (self.error is None):
            raise ValueError("a result holds either outputs or an error")
        return self

    @property
    def outputs(self) -> Outputs | None:
        """What the task says about every input; None where it failed."""
        return None if self.predicted is None else self.predicted.outputs

    def require(self) -> Predicted:
        """Return what the task says.

        Raises:
            ApiError: this task failed.
        """
        if self.predicted is None:
            raise (self.error or Problem(code="api_error", status=500)).to_error()
        return self.predicted


class FanOut(Result):
    """The answers of several tasks to the same inputs, in the order they were asked for."""

    results: tuple[TaskResult, ...]
    timings: Timings = Timings()
    request_id: str | None = None

    def __getitem__(self, reference: str) -> TaskResult:
        """The result of the task that was asked for as `reference`."""
        for result in self.results:
            if result.reference == reference:
                return result
        raise KeyError(reference)


class RunningCandidate(Result):
    """A canary or shadow beside an alias."""

    alias: str
    role: str
    version: int
    share: float


class TaskSummary(Result):
    """One task of the registry; `version` is what its bare name means."""

    name: str
    version: int
    versions: tuple[int, ...]
    aliases: dict[str, int]
    candidates: tuple[RunningCandidate, ...] = ()
    head: str
    labels: tuple[str, ...]
    method: str
    split_depth: int | None = None
    resident_versions: tuple[int, ...] = ()


class TaskDetail(TaskSummary):
    """One task with the manifest of one of its versions."""

    manifest: dict[str, JsonValue]


class AliasChange(Result):
    """A move of an alias."""

    task: str
    alias: str
    version: int
    previous_version: int | None = None


class CandidateRole(StrEnum):
    """What a version does beside an alias: answer a share of its requests, or run unseen."""

    CANARY = "canary"
    SHADOW = "shadow"


class CandidateChange(Result):
    """A canary or shadow that was set, or one that has ended."""

    task: str
    alias: str
    role: CandidateRole
    version: int
    share: float
    active: bool


class DriftCount(Result):
    """Inputs whose largest difference of scores is at most `up_to`, and above the bound before."""

    up_to: float | None = Field(description="None: beyond the last bound")
    inputs: int


class ShadowReport(Result):
    """How a shadow has done on one server since that started; counts are of inputs."""

    task: str
    alias: str
    version: int
    shadow_version: int
    share: float
    compared: int
    agreement: float | None = None
    errors: int
    dropped: int
    mean_drift: float | None = None
    max_drift: float | None = None
    drift_histogram: tuple[DriftCount, ...] = ()


class Residency(Result):
    """A task version in the server's memory."""

    task: str
    version: int
    resident: bool
    pinned: bool = False
    bytes: int


class Unpinning(Result):
    """The versions of a task that were pinned and may be evicted again."""

    task: str
    versions: tuple[int, ...]


class Eviction(Result):
    """The versions of a task that were dropped from memory."""

    task: str
    versions: tuple[int, ...]


class BackboneMemory(Result):
    """What the shared backbone takes."""

    name: str
    digest: str
    dtype: str
    bytes: int
    parameters: int


class TaskMemory(Result):
    """What one resident task version takes beside the backbone."""

    task: str
    version: int
    method: str
    split_depth: int | None = None
    bytes: int
    parameters: int
    pinned: bool = False


class DeviceTierMemory(Result):
    """Task versions ready to answer, and the budget they keep to."""

    bytes: int
    budget_bytes: int
    pinned_bytes: int
    """A part of `bytes`."""
    loading_bytes: int
    versions: int


class HostTierMemory(Result):
    """Stored bytes of task versions in main memory beside a device of its own."""

    bytes: int
    budget_bytes: int
    blobs: int
    hits: int
    misses: int


class TiersMemory(Result):
    """What a server holds of its task versions, and of how many bytes at most."""

    device: DeviceTierMemory
    host: HostTierMemory


class TrunkCacheMemory(Result):
    """Trunk states the server holds beside the parameters, and what became of them so far."""

    bytes: int
    max_bytes: int
    states: int
    hits: int
    misses: int
    evictions: int
    saved_tokens: int


class ProcessMemory(Result):
    """Memory of the server process as the kernel counts it; `None` where it cannot."""

    rss_bytes: int
    peak_rss_bytes: int | None = None
    pss_bytes: int | None = None
    uss_bytes: int | None = None


class ActivationsMemory(Result):
    """What forward passes held at once beside all else; `None` on a processor."""

    peak_bytes: int | None = None


class MemoryReport(Result):
    """Bytes in use, and what one full model per resident task would take."""

    backbone: BackboneMemory
    tasks: tuple[TaskMemory, ...]
    shared_bytes: int
    dedicated_bytes: int
    saved_share: float
    saved_share_formula: float | None = None
    """The same by parameter counts alone; `None` from servers that do not tell it."""
    tiers: TiersMemory | None = None
    """`None` from servers without budgets."""
    trunk_cache: TrunkCacheMemory | None = None
    """`None` from servers that have none."""
    activations: ActivationsMemory = ActivationsMemory()
    process: ProcessMemory


class ServerInfo(Result):
    """What a server is."""

    name: str
    version: str
    backbone: dict[str, JsonValue]
    device: str
    dtype: str
    registry: str
    limits: dict[str, JsonValue]
