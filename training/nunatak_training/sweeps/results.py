"""Results of a sweep: one file per run with one JSON line, written as a whole or not at all."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import Digest
from nunatak_contract.record import problems_text
from nunatak_rows import RowFormat
from nunatak_training.cache import replacing
from nunatak_training.kinds import TaskKind
from nunatak_training.recipes import Recipe

SUFFIX = ".jsonl"
LOCK_NAME = ".lock"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class DataDescription(_Record):
    source: str
    kind: str
    train_digest: Digest
    dev_digest: Digest
    test_digest: Digest | None
    num_train: int
    num_dev: int
    num_test: int


class BackboneDescription(_Record):
    name: str
    digest: Digest
    num_layers: int


class RunDescription(_Record):
    digest: Digest
    """Over data, backbone and recipe. Runs with the same result have the same digest."""
    sweep: str
    task: str
    train_cap: int | None
    backbone: BackboneDescription
    data: DataDescription
    recipe: Recipe


class EpochRecord(_Record):
    epoch: int
    step: int | None = None
    """Optimizer steps; None in older results."""
    train_loss: float
    dev_loss: float
    dev_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The number of a task's examples that a run reads; None means all."""

    train: int | None = None
    dev: int | None = None
    dev_from_train: bool = False
    """Whether dev is drawn from the other train examples, and the dev set becomes the test set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    data: str
    kind: TaskKind | None = None
    dev: str | None = None
    spelt: RowFormat = field(default_factory=RowFormat)
    cut: Cut


class RunOrigin(_Record):
    """The places that a run reads; another machine or folder may have others."""

    backbone: str
    source: Source


class Finished(_Record):
    status: Literal["finished"] = "finished"
    metric: str
    scores: dict[str, float]
    """On the dev examples after the best epoch; `metric` comes first."""
    test_scores: dict[str, float]
    num_parameters: int
    """The task's own, with the head."""
    weights_digest: Digest | None = None
    """SHA-256 of these parameters; None in results of earlier releases."""
    best_epoch: int
    epochs: tuple[EpochRecord, ...]

    @property
    def score(self) -> float:
        """On the test examples, or on dev without test examples."""
        return (self.test_scores or self.scores)[self.metric]


class Failed(_Record):
    status: Literal["failed"] = "failed"
    code: str
    message: str


class RunRecord(_Record):
    run: RunDescription
    outcome: Annotated[Finished | Failed, Field(discriminator="status")]
    seconds: float
    """Wall time."""
    cpu_seconds: float
    environment: dict[str, JsonValue]
    """Versions and device. The digest leaves them out, but they may change the last digits."""
    origin: RunOrigin | None = None
    """None in results of earlier releases."""


@dataclass(frozen=True, slots=True)
class ResultsFolder:
    """Results by the digests of their runs; `cat *.jsonl` prints all results."""

    path: Path

    def records(self) -> tuple[RunRecord, ...]:
        """Ordered by digest; empty if there is no folder."""
        return tuple(self._read(path) for path in sorted(self.path.glob(f"*{SUFFIX}")))

    def add(self, record: RunRecord) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        # A killed sweep leaves no half line.
        with replacing(self.path / f"{record.run.digest}{SUFFIX}") as partial:
            partial.write_text(f"{record.model_dump_json()}\n", encoding="utf-8")

    def drop_failures(self) -> None:
        """So that these runs are tried again."""
        for record in self.records():
            if isinstance(record.outcome, Failed):
                (self.path / f"{record.run.digest}{SUFFIX}").unlink()

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep other sweeps out; the lock ends with the process, also with a killed one."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK_NAME, blocking=False)
        try:
            with lock:
                yield
        except Timeout as error:
            raise NunatakError("sweep_running", folder=str(self.path)) from error

    def _read(self, path: Path) -> RunRecord:
        try:
            record = RunRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise NunatakError(
                "corrupt_result", file=path.name, problem=problems_text(error)
            ) from error
        if record.run.digest != path.stem:
            raise NunatakError(
                "corrupt_result", file=path.name, problem=f"holds the run {record.run.digest}"
            )
        return record
