"""The collection: texts that an upstream has answered, kept in files for training.

A folder has two files for each question: `DIGEST.jsonl` with rows, and `DIGEST.json` with the
question. A row is `{"text", "probabilities", "at"}`, with the probability of each label of
`QuestionCard.names`. Processes that share a folder take turns by a lock on the folder.
"""

import asyncio
import errno
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Final, Self

from cachetools import LRUCache
from pydantic import BaseModel

from nunatak_contract.errors import NunatakError
from nunatak_contract.locks import locked_folder
from nunatak_contract.questions import Outcome, TypedQuestion
from nunatak_server.decisions.answers import QuestionAnswer
from nunatak_server.settings import ServerSettings

ROWS, QUESTION, NEW = ".jsonl", ".json", ".new"
MAX_QUESTIONS: Final = 1000
"""Most questions of a folder, because clients choose unknown questions."""
MAX_FILE_BYTES: Final = 128 * 1024**2
"""Most bytes of the rows of a question, because a file is read whole when its old rows go."""
MAX_PENDING: Final = 1000
"""Most rows that wait for the disk; further rows are lost."""
SWEEP_S: Final = 3600.0
DAY_S: Final = 86_400
SPARE: Final = 0.9
"""The share of a full file that stays when the file loses its oldest rows."""

logger = logging.getLogger(__name__)


class CollectedQuestion(BaseModel):
    rows: int
    oldest: str
    newest: str
    question: TypedQuestion
    file: Path


class Collection:
    """The files of a folder; any thread may use it, one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        max_rows: int = 0,
        max_days: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The bounds matter for a collection that is swept or added to."""
        self._folder, self._max_rows, self._max_days = folder, max_rows, max_days
        self._clock = clock
        self._counted: LRUCache[Path, tuple[int, int]] = LRUCache(MAX_QUESTIONS)
        """Bytes and rows of each file after this process has written to it."""

    def open(self) -> None:
        """Make the folder, or check that nobody else may read it.

        Raises:
            NunatakError: `invalid_collection`.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._folder.stat()
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise self._invalid(f"others may read it; run: chmod 700 {self._folder}")
        except OSError as error:
            raise self._invalid(error.strerror or "it cannot be used") from None

    def add(self, question: TypedQuestion, text: str, probabilities: Mapping[str, float]) -> None:
        """Add a row. A full file loses its oldest rows."""
        file = self._folder / f"{question.digest}{ROWS}"
        row = {"text": text, "probabilities": dict(probabilities), "at": _moment(self._clock())}
        with locked_folder(self._folder):
            if file.exists() and self._is_full(file):
                self._keep(file, share=SPARE)
            if not file.exists():
                if len(self._files(ROWS)) >= MAX_QUESTIONS:
                    return
                fields = question.model_dump(mode="json", exclude_defaults=True)
                self._replace(file.with_suffix(QUESTION), json.dumps(fields, indent=2).encode())
            count = self._num_rows(file) if file.exists() else 0
            self._append(file, json.dumps(row).encode() + b"\n")
            self._counted[file] = file.stat().st_size, count + 1

    def sweep(self) -> None:
        """Remove the rows that are too old, and the rest of replacements that were cut short.

        A file that fails keeps no other file; the last error is raised at the end.
        """
        failure: OSError | None = None
        with locked_folder(self._folder):
            for file in self._files(NEW):
                file.unlink()
            for file in self._files(ROWS):
                try:
                    self._keep(file)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def questions(self) -> list[CollectedQuestion]:
        """Return all questions with rows, the fullest first."""
        with self._reading():
            found = [self._read(it) for it in self._files(ROWS)]
        return sorted(found, key=lambda it: -it.rows)

    def clear(self) -> int:
        """Remove all rows and questions, also damaged ones; return the number of rows."""
        with self._reading():
            found = sum(it.read_bytes().count(b"\n") for it in self._files(ROWS))
            for file in (it for end in (ROWS, QUESTION, NEW) for it in self._files(end)):
                file.unlink()
        return found

    def _files(self, end: str) -> list[Path]:
        # By their whole names, because a folder that is named by mistake has files of its own.
        return list(self._folder.glob(f"{'[0-9a-f]' * 64}{end}"))

    def _append(self, file: Path, line: bytes) -> None:
        with open(file, "ab", buffering=0, opener=_open_own) as rows:
            before = rows.tell()
            if rows.write(line) < len(line):
                # A part of a row would spoil the next row.
                rows.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _read(self, file: Path) -> CollectedQuestion:
        rows = file.read_bytes().splitlines()
        return CollectedQuestion(
            rows=len(rows),
            oldest=_moment_of(rows[0]) if rows else "",
            newest=_moment_of(rows[-1]) if rows else "",
            question=TypedQuestion.model_validate_json(file.with_suffix(QUESTION).read_bytes()),
            file=file,
        )

    def _keep(self, file: Path, *, share: float = 1.0) -> None:
        """Keep the newest rows of a file that are not too old; without any, the file goes."""
        first = _moment(self._clock() - DAY_S * self._max_days)
        before = file.read_bytes().splitlines(keepends=True)
        newest = [it for it in reversed(before) if _moment_of(it) >= first]
        newest = newest[: int(share * self._max_rows)]
        sizes = accumulate(map(len, newest))
        after = [
            it for it, size in zip(newest, sizes, strict=True) if size <= share * MAX_FILE_BYTES
        ]
        if not after:
            file.unlink()
            file.with_suffix(QUESTION).unlink(missing_ok=True)
        elif len(after) < len(before):
            self._replace(file, b"".join(reversed(after)))

    def _is_full(self, file: Path) -> bool:
        return self._num_rows(file) >= self._max_rows or file.stat().st_size >= MAX_FILE_BYTES

    def _num_rows(self, file: Path) -> int:
        size, count = self._counted.get(file, (0, 0))
        return count if file.stat().st_size == size else file.read_bytes().count(b"\n")

    def _replace(self, file: Path, content: bytes) -> None:
        made = file.with_suffix(NEW)
        try:
            with open(made, "wb", opener=_open_own) as opened:
                opened.write(content)
            made.replace(file)
        except OSError:
            # Half a replacement would take the room of other rows.
            made.unlink(missing_ok=True)
            raise

    @contextmanager
    def _reading(self) -> Generator[None]:
        try:
            with locked_folder(self._folder):
                yield
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "a file is damaged"
            raise self._invalid(reason or "it cannot be read") from None

    def _invalid(self, problem: str) -> NunatakError:
        return NunatakError("invalid_collection", folder=self._folder, problem=problem)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _moment_of(row: bytes) -> str:
    """Return the time of a row; a damaged row is older than all others."""
    try:
        return str(json.loads(row)["at"])
    except (ValueError, KeyError, TypeError):
        return ""


class Collector:
    """Adds rows on a thread of its own; only the event loop thread may use it."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nunatak-collection")
        self._num_pending = 0
        self._is_failing = False

    @classmethod
    def of(cls, settings: ServerSettings) -> Self | None:
        if settings.collect is None:
            return None
        rows, days = settings.collect_rows, settings.collect_days
        return cls(Collection(settings.collect, max_rows=rows, max_days=days))

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, self._collection.open)

    def keep(self, answer: QuestionAnswer, names: Mapping[Outcome, str], text: str) -> None:
        """Keep a text with an answer; `names` are the labels of the outcomes."""
        question = answer.question
        # Two outcomes with one name, such as the text `true` and the value true, train no task.
        if self._num_pending >= MAX_PENDING or len({*names.values()}) < len(names):
            return
        shares = zip(question.outcomes, answer.probabilities, strict=True)
        row = {names[outcome]: share for outcome, share in shares}
        self._submit(self._collection.add, question, text, row)

    async def run(self) -> None:
        """Remove old rows now and every hour, also while no text comes."""
        while True:
            self._submit(self._collection.sweep)
            await asyncio.sleep(SWEEP_S)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    def _submit(self, work: Callable[..., None], *given: object) -> None:
        self._num_pending += 1
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, *given)
        done.add_done_callback(self._note)

    def _note(self, done: asyncio.Future[None]) -> None:
        self._num_pending -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._is_failing:
            # Once until it works again, and without the row.
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            logger.warning("texts cannot be collected (%s)", reason)
        self._is_failing = error is not None
