"""What a sweep keeps of each run: one JSON line that says all about it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from nunatak_registry.names import Digest
from nunatak_training.recipes import Recipe


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class DataDescription(_Record):
    """The examples of a run."""

    source: str
    kind: str
    train_digest: Digest
    dev_digest: Digest
    test_digest: Digest | None
    num_train: int
    num_dev: int
    num_test: int


class BackboneDescription(_Record):
    """The backbone of a run."""

    name: str
    digest: Digest
    num_layers: int


class RunDescription(_Record):
    """What determines a run, and what people call it."""

    digest: Digest
    """Over data, backbone and recipe: runs that must give the same result have the same."""
    sweep: str
    task: str
    train_cap: int | None
    backbone: BackboneDescription
    data: DataDescription
    recipe: Recipe


class EpochRecord(_Record):
    """One scored epoch."""

    epoch: int
    step: int | None = None
    """Optimizer steps until then; None in results of before these were kept."""
    train_loss: float
    dev_loss: float
    dev_score: float


class Finished(_Record):
    """What a run found."""

    status: Literal["finished"] = "finished"
    metric: str
    scores: dict[str, float]
    """On the dev examples after the best epoch; `metric` comes first."""
    test_scores: dict[str, float]
    """On the test examples, if the run had such."""
    num_parameters: int
    """Of its own, head included."""
    best_epoch: int
    epochs: tuple[EpochRecord, ...]

    @property
    def score(self) -> float:
        """The chosen metric on the test examples, or on dev where there are none."""
        return (self.test_scores or self.scores)[self.metric]


class Failed(_Record):
    """Why a run found nothing."""

    status: Literal["failed"] = "failed"
    code: str
    message: str


class RunRecord(_Record):
    """One run and its outcome."""

    run: RunDescription
    outcome: Annotated[Finished | Failed, Field(discriminator="status")]
    seconds: float
    """Wall time."""
    cpu_seconds: float
    environment: dict[str, JsonValue]
    """Versions and device: what the digest leaves out, and may move the last digits."""
