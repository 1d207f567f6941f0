"""The folder of a run: what is scored, which parts are done, and the step that makes OUT.

    OUT.parts/run.json                what the run scores, written before the first part
    OUT.parts/rejected-00000007.jsonl the rows of a chunk without answers, if there are any
    OUT.parts/part-00000007.jsonl     the rows of a chunk with answers; it marks the chunk as done
    OUT.parts/finished                OUT is there, and only the folder has to go

Every file is written under another name, synced and renamed, so a killed run leaves no half file. A
chunk without its part is scored again, and the same rows come from the same versions. OUT appears
by one rename when all parts are there.
"""

import fcntl
import filecmp
import json
import os
import re
import shutil
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import JsonValue, ValidationError

from nunatak_cli.asking.writing import PartLayout
from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_contract.record import Record

PARTS: Final = ".parts"
REJECTED: Final = ".rejected.jsonl"
RECORD: Final = "run.json"
LOCK: Final = "lock"
FINISHED: Final = "finished"
WRITING: Final = ".writing"
OWN: Final = re.compile(
    r"(run\.json|lock|finished|joined|rejected|(part|rejected)-\d{8}\.\w+)(\.writing)?"
)
"""The names of all files of a run. Others in a folder without a record are the user's."""


class ScoredVersion(Record, frozen=True):
    """A task version, which a reference meant at the begin of the run."""

    reference: str
    meant: str
    digest: str
    """Of the content of the version."""


class CorpusRecord(Record, frozen=True):
    """What a run scores, and how. A part may be kept only by a run with an equal record."""

    release: str
    files: dict[str, tuple[int, int]]
    """The size and the time of change (in ns) of each file of the corpus."""
    tasks: tuple[ScoredVersion, ...]
    backbone: str
    numerics: str
    """The type of device and the number format."""
    options: dict[str, JsonValue]

    def changes(self, other: "CorpusRecord") -> list[str]:
        names = type(self).model_fields
        return [name for name in names if getattr(self, name) != getattr(other, name)]


class RunFolder:
    """The folder of one run; `held` keeps other processes out."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._path = out.with_name(out.name + PARTS)

    @property
    def rejected(self) -> Path:
        """The file of the rows without answers, next to OUT."""
        stem = self._out.name.removesuffix(".gz")
        return self._out.with_name(Path(stem).stem + REJECTED)

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep other runs out of the folder. The lock ends with the process, also a killed one.

        A folder without a record is removed at the end, because it holds no work.
        """
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as error:
            raise invalid_option(f"{self._path} cannot be made: {error.strerror}") from error
        for it in () if (self._path / RECORD).exists() else self._path.iterdir():
            if not OWN.fullmatch(it.name):
                raise invalid_option(f"{it} is of no run; move it away, or name another OUT")
        with (self._path / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise NunatakError("corpus_running", folder=str(self._path)) from error
            try:
                yield
            finally:
                if not (self._path / RECORD).exists():
                    shutil.rmtree(self._path, ignore_errors=True)

    def record(self) -> CorpusRecord | None:
        """Return the record of the run that began here; None if no run did."""
        try:
            return CorpusRecord.model_validate_json((self._path / RECORD).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise self._changed("the record of the run cannot be read") from error

    def begin(self, wanted: CorpusRecord) -> None:
        """Write the record of a run, or compare it with the record of the run that began here."""
        begun = self.record()
        if begun is None:
            # Parts without a record may be of any run.
            for path in self._path.iterdir():
                if path.name != LOCK:
                    path.unlink()
            self._write(RECORD, [wanted.model_dump_json(indent=2).encode()])
        elif changes := begun.changes(wanted):
            raise self._changed(f"changed since the begin of the run: {', '.join(changes)}")

    def done(self, layout: PartLayout) -> frozenset[int]:
        found = self._path.glob(f"part-*.{layout.suffix}")
        return frozenset(int(it.name[5:13]) for it in found)

    def write(
        self,
        index: int,
        layout: PartLayout,
        part: bytes,
        rejected: Sequence[Mapping[str, JsonValue]],
    ) -> None:
        name = f"rejected-{index:08}.jsonl"
        # A run that was killed before it wrote the part may have rejected other rows.
        (self._path / name).unlink(missing_ok=True)
        if rejected:
            lines = [f"{json.dumps(row, ensure_ascii=True)}\n".encode() for row in rejected]
            self._write(name, lines)
        self._write(f"part-{index:08}.{layout.suffix}", [part])

    def finish(self, layout: PartLayout, *, num_chunks: int) -> int:
        """Join all parts to OUT, remove the folder, and return the number of rejected rows."""
        parts = [self._path / f"part-{it:08}.{layout.suffix}" for it in range(num_chunks)]
        joined, rejected = self._path / f"joined{WRITING}", self._path / f"rejected{WRITING}"
        with _synced(joined) as file:
            layout.join(parts, file)
        num_rejected = 0
        with _synced(rejected) as file:
            for path in sorted(self._path.glob("rejected-*.jsonl")):
                lines = path.read_bytes()
                num_rejected += lines.count(b"\n")
                file.write(lines)
        for made, path in ((joined, self._out), (rejected, self.rejected))[
            : 1 + bool(num_rejected)
        ]:
            # The same bytes are of this run, which was killed after the next step.
            if path.exists() and not filecmp.cmp(made, path, shallow=False):
                raise invalid_option(f"{path} is of another run; move it away, then go on")
        if num_rejected:
            rejected.replace(self.rejected)
            _sync_folder(self._out.parent)
        self._write(FINISHED, [])
        joined.replace(self._out)
        _sync_folder(self._out.parent)
        self.remove()
        return num_rejected

    @property
    def is_finished(self) -> bool:
        """Whether OUT is the result of this run, which was killed before its last step."""
        return self._out.exists() and (self._path / FINISHED).exists()

    def remove(self) -> None:
        """Remove the folder; the mark of a finished run goes last, for a killed removal."""
        for path in self._path.iterdir():
            if path.name != FINISHED:
                path.unlink()
        shutil.rmtree(self._path)

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        path = self._path / name
        partial = path.with_name(name + WRITING)
        with _synced(partial) as file:
            file.writelines(pieces)
        partial.replace(path)
        # A part must not outlive the rejected rows of its chunk in a power failure.
        _sync_folder(self._path)

    def _changed(self, problem: str) -> NunatakError:
        return NunatakError("corpus_changed", folder=str(self._path), problem=problem)


@contextmanager
def _synced(path: Path) -> Generator[BinaryIO]:
    """Open a file to write; its bytes are on the disk at the end of the block."""
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # The system names no file whose disk is full.
        error.filename = error.filename or str(path)
        raise


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
