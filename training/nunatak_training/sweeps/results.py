"""The results folder: one file with one JSON line a run, there as a whole or not at all."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from nunatak_training.errors import CorruptResultError, SweepRunningError
from nunatak_training.sweeps.records import Failed, RunRecord

SUFFIX = ".jsonl"
LOCK_NAME = ".lock"


class ResultsFolder:
    """Results by the digests of their runs; `cat *.jsonl` gives them all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    def records(self) -> tuple[RunRecord, ...]:
        """Return all results, ordered by digest; none where there is no folder.

        Raises:
            CorruptResultError: a file holds no result, or that of another run.
        """
        return tuple(self._read(path) for path in sorted(self._path.glob(f"*{SUFFIX}")))

    def add(self, record: RunRecord) -> None:
        """Keep a result, in place of an earlier one of the same run."""
        self._path.mkdir(parents=True, exist_ok=True)
        target = self._path / f"{record.run.digest}{SUFFIX}"
        # Written beside and renamed: a killed sweep leaves no half line.
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
