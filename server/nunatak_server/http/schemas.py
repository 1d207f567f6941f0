"""The wire format: whole requests and responses."""

from typing import Annotated, Any

from pydantic import Field

from nunatak_contract.enums import HeadKind
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import CandidateRole
from nunatak_server.http.requests import MAX_ITEMS, Inputs, Message, Parameters

Reference = Annotated[str, Field(min_length=1, max_length=200, examples=["tone", "tone@prod"])]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]


class PredictRequest(Message):
    """One or more inputs for one task."""

    inputs: Inputs
    parameters: Parameters | None = None


class PredictManyRequest(PredictRequest):
    """One or more inputs for several tasks."""

    tasks: Annotated[
        list[Reference],
        Field(
            min_length=1,
            max_length=MAX_ITEMS,
            fail_fast=True,
            json_schema_extra={"uniqueItems": True},
        ),
    ]


class ScoredLabel(Message):
    """One label and its score."""

    label: str
    score: float


class LabelledToken(Message):
    """One token or word of a text, by its place and its characters."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


class LabelledGroup(Message):
    """Neighbouring tokens of one label."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


class FoundAnswer(Message):
    """A part of the context, by its characters."""

    answer: str
    score: float
    start: int
    end: int


class ScoredDocument(Message):
    """A document by its position in the query."""

    index: int
    score: float
    document: str | None = None


Output = (
    list[ScoredLabel]
    | list[LabelledToken]
    | list[LabelledGroup]
    | list[FoundAnswer]
    | list[ScoredDocument]
)
"""What a task says about one input, by its head."""


Tokens = Annotated[
    int | list[int],
    Field(description="tokens read, special ones included; one count per input for a list"),
]
Truncated = Annotated[
    bool | list[bool],
    Field(description="whether a part of the input was not read; one per input for a list"),
]


class PredictResponse(Message):
    """What the task says; one output per input if a list was sent."""

    task: str
    version: int
    head: HeadKind
    outputs: Output | list[Output]
    tokens: Tokens
    truncated: Truncated


class ErrorItem(Message):
    """What is wrong with one field of a request."""

    location: str
    message: str


class Problem(Message):
    """A failure (RFC 9457, `application/problem+json`)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[ErrorItem] | None = None
    request_id: str | None = None


class TaskResult(Message):
    """One task's answer within a request for several."""

    reference: str
    task: str
    version: int
    head: HeadKind
    outputs: Output | list[Output]
    tokens: Tokens
    truncated: Truncated


class TaskError(Message):
    """Why one task of several has no answer."""

    reference: str
    error: Problem


class PredictManyResponse(Message):
    """Results in the order of the request's tasks."""

    results: list[TaskResult | TaskError]


class RunningCandidate(Message):
    """A version that runs beside an alias, and its share of the alias's requests."""

    alias: str
    role: CandidateRole
    version: int
    share: float


class TaskSummaryResponse(Message):
    """One task; head, labels, method and split depth are those of `version`."""

    name: str
    version: int
    versions: list[int]
    aliases: dict[str, int]
    candidates: list[RunningCandidate]
    head: str
    labels: list[str]
    method: str
    split_depth: int | None
    resident_versions: list[int]


class TaskListResponse(Message):
    """All tasks of the registry."""

    tasks: list[TaskSummaryResponse]


class TaskResponse(TaskSummaryResponse):
    """One task, and the manifest of one of its versions."""

    manifest: TaskManifest


class PromoteRequest(Message):
    """Where an alias shall point, and where it is expected to point now."""

    version: Version
    expected_version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="0 = the alias must not exist yet"
    )


class RollbackRequest(Message):
    """Where an alias is expected to point now."""

    expected_version: Version | None = None


class CandidateRequest(Message):
    """What shall run beside an alias, and which version is expected to do so now."""

    version: Version
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        description="of the requests that name the alias, or the task alone"
    )
    expected_version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="0 = there must be none yet"
    )


class CandidateEndRequest(Message):
    """Which version is expected to run beside an alias now."""

    expected_version: Version | None = None


class CandidateResponse(Message):
    """A canary or shadow after it was set, or as it was when it ended."""

    task: str
    alias: str
    role: CandidateRole
    version: int
    share: float
    active: bool


class DriftCount(Message):
    """Inputs whose largest difference of scores is at most `up_to` and above the bound before."""

    up_to: float | None = Field(description="null = beyond the last bound")
    inputs: int


class ShadowResponse(Message):
    """How a shadow has done on this server; counts are of inputs."""

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
    drift_histogram: list[DriftCount]


class AliasResponse(Message):
    """An alias after it was moved."""

    task: str
    alias: str
    version: int
    previous_version: int | None


class PreloadResponse(Message):
    """A version that is in memory now."""

    task: str
    version: int
    resident: bool
    pinned: bool
    bytes: int


class UnpinResponse(Message):
    """The versions that were pinned and may go again."""

    task: str
    versions: list[int]


class EvictResponse(Message):
    """The versions that were dropped from memory."""

    task: str
    versions: list[int]


class BackboneMemory(Message):
    """The backbone in memory."""

    name: str
    digest: str
    dtype: str
    bytes: int
    parameters: int


class TaskMemory(Message):
    """One task version in memory."""

    task: str
    version: int
    method: str
    split_depth: int | None
    bytes: int
    parameters: int
    pinned: bool


class DeviceTierMemory(Message):
    """Task versions ready to answer; `pinned_bytes` are a part of `bytes`."""

    bytes: int
    budget_bytes: int
    pinned_bytes: int
    loading_bytes: int
    versions: int


class HostTierMemory(Message):
    """Stored bytes of task versions, checked, in main memory; what became of the reads so far."""

    bytes: int
    budget_bytes: int
    blobs: int
    hits: int
    misses: int


class TiersMemory(Message):
    """What is held of task versions, and of how many bytes at most."""

    device: DeviceTierMemory
    host: HostTierMemory


class TrunkCacheMemory(Message):
    """Trunk states held beside the parameters, and what became of them since the start."""

    bytes: int
    max_bytes: int
    states: int
    hits: int
    misses: int
    evictions: int
    saved_tokens: int


class ProcessMemoryResponse(Message):
    """What the operating system counts."""

    rss_bytes: int
    peak_rss_bytes: int | None
    pss_bytes: int | None
    uss_bytes: int | None


class ActivationsMemory(Message):
    """What forward passes held at once beside all else; null on a processor."""

    peak_bytes: int | None


class MemoryResponse(Message):
    """What is held, and what one full model per resident task version would hold."""

    backbone: BackboneMemory
    tasks: list[TaskMemory]
    shared_bytes: int
    dedicated_bytes: int
    saved_share: float
    saved_share_formula: float
    tiers: TiersMemory
    trunk_cache: TrunkCacheMemory
    activations: ActivationsMemory
    process: ProcessMemoryResponse


class StatusResponse(Message):
    """Whether the process lives."""

    status: str


class ReadyResponse(StatusResponse):
    """Whether the process takes requests."""

    warnings: Annotated[list[str], Field(description="what is wrong with the registry, if it is")]


class InfoResponse(Message):
    """What this server is."""

    name: str
    version: str
    backbone: dict[str, Any]
    device: str
    dtype: str
    registry: str
    limits: dict[str, int]
