"""The wire format: strict, frozen, and without fields that nobody declared."""

from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from nunatak_registry import TaskManifest
from nunatak_server.postprocess import ScoreFunction, ScoreOptions

Reference = Annotated[str, Field(min_length=1, max_length=200, examples=["tone", "tone@prod"])]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]


# Above every setting; what is longer is refused before its items are looked at, because listing
# the faults of a million items would hold up the event loop.
MAX_ITEMS = 4096
MAX_FIELDS = 64


class Message(BaseModel):
    """Base of everything that is sent or received."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: object) -> object:
        match value:
            case dict() if len(cast("dict[str, object]", value)) > MAX_FIELDS:
                raise ValueError(f"an object may have at most {MAX_FIELDS} fields")
            case _:
                return value


class TextPair(Message):
    """A text, or two texts that are read together."""

    text: str
    text_pair: str | None = None


def _input_kind(value: object) -> str:
    if isinstance(value, list):
        return "list"
    return "text" if isinstance(value, str) else "pair"


# Tags choose the one schema that is meant, so that errors speak of that one alone.
Item = Annotated[
    Annotated[str, Tag("text")] | Annotated[TextPair, Tag("pair")], Discriminator(_input_kind)
]
Inputs = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[TextPair, Tag("pair")]
    | Annotated[list[Item], Tag("list"), Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)],
    Discriminator(_input_kind),
]


class Parameters(Message):
    """How logits are shown."""

    top_k: Annotated[int, Field(ge=1)] | None = Field(None, description="null = all labels")
    function_to_apply: Annotated[ScoreFunction, Field(strict=False)] | None = Field(
        None, description="null = by problem type"
    )

    def options(self) -> ScoreOptions:
        """Return the same in the terms of the service."""
        return ScoreOptions(function=self.function_to_apply, top_k=self.top_k)


class PredictRequest(Message):
    """One or more inputs for one task."""

    inputs: Inputs
    parameters: Parameters | None = None


class PredictManyRequest(PredictRequest):
    """One or more inputs for several tasks."""

    tasks: Annotated[list[Reference], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]


class ScoredLabel(Message):
    """One label and its score."""

    label: str
    score: float


class PredictResponse(Message):
    """Labels, best first; one list per input if a list was sent."""

    task: str
    version: int
    outputs: list[ScoredLabel] | list[list[ScoredLabel]]


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
    outputs: list[ScoredLabel] | list[list[ScoredLabel]]


class TaskError(Message):
    """Why one task of several has no answer."""

    reference: str
    error: Problem


class PredictManyResponse(Message):
    """Results in the order of the request's tasks."""

    results: list[TaskResult | TaskError]


class TaskSummaryResponse(Message):
    """One task; head, labels, method and split depth are those of `version`."""

    name: str
    version: int
    versions: list[int]
    aliases: dict[str, int]
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
    bytes: int


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


class ProcessMemoryResponse(Message):
    """What the operating system counts."""

    rss_bytes: int
    pss_bytes: int | None
    uss_bytes: int | None


class MemoryResponse(Message):
    """What is held, and what one full model per resident task version would hold."""

    backbone: BackboneMemory
    tasks: list[TaskMemory]
    shared_bytes: int
    dedicated_bytes: int
    saved_share: float
    process: ProcessMemoryResponse


class StatusResponse(Message):
    """Whether the process lives or takes requests."""

    status: str


class InfoResponse(Message):
    """What this server is."""

    name: str
    version: str
    backbone: dict[str, Any]
    device: str
    dtype: str
    registry: str
    limits: dict[str, int]
