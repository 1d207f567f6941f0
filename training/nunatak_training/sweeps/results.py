"""Results of a sweep: one file per run with one JSON line, written as a whole or not at all."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from nunatak_contract.names import Digest
from nunatak_training.errors import CorruptResultError, SweepRunningError
from nunatak_training.recipes import Recipe

SUFFIX = ".jsonl"
LOCK_NAME = ".lock"


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
    """The settings that determine a run, and its name for people."""

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
    """The result of a run that finished."""

    status: Literal["finished"] = "finished"
    metric: str
    scores: dict[str, float]
    """On the dev examples after the best epoch; `metric` comes first."""
    test_scores: dict[str, float]
    """On the test examples, if the run had such."""
    num_parameters: int
    """Number of the task's own parameters, head included."""
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
    """Versions and device: the digest leaves them out, but they may move the last digits."""


class ResultsFolder:
    """Results by the digests of their runs; `cat *.jsonl` gives them all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """The folder of the results."""
        return self._path

    def records(self) -> tuple[RunRecord, ...]:
        """Return all results, ordered by digest; none where there is no folder.

        Raises:
            CorruptResultError: a file holds no result, or the result of another run.
        """
        return tuple(self._read(path) for path in sorted(self._path.glob(f"*{SUFFIX}")))

    def add(self, record: RunRecord) -> None:
        """Keep a result, in place of an earlier one of the same run."""
        self._path.mkdir(parents=True, exist_ok=True)
        target = self._path / f"{record.run.digest}{SUFFIX}"
        # Written next to the target and renamed: a killed sweep leaves no half line.
        scratch = target.with_suffix(".writing")
        with scratch.open("w", encoding="utf-8") as file:
            file.write(f"{record.model_dump_json()}\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)

    def drop_failures(self) -> None:
        """Forget the runs that failed, so that they are tried again."""
        for record in self.records():
            if isinstance(record.outcome, Failed):
                (self._path / f"{record.run.digest}{SUFFIX}").unlink()

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep other sweeps out of the folder; the hold ends with the process, however that ends.

        Raises:
            SweepRunningError: another sweep holds it.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._path / LOCK_NAME, blocking=False)
        try:
            with lock:
                yield
        except Timeout as error:
            raise SweepRunningError(str(self._path)) from error

    def _read(self, path: Path) -> RunRecord:
        try:
            record = RunRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CorruptResultError(path.name, str(error).splitlines()[0]) from error
        if record.run.digest != path.stem:
            raise CorruptResultError(path.name, f"holds the run {record.run.digest}")
        return record
