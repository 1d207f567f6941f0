"""The audit log: JSON lines of administrative acts, appended to a file."""

import asyncio
import errno
import json
import logging
import os
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from nunatak_contract.errors import NunatakError

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK

logger = logging.getLogger(__name__)

AUDIT_THREADS: Final = "nunatak-audit"


@dataclass(frozen=True, slots=True)
class AuditLog:
    """Writes to a file that is opened for each line, so that it may be rotated.

    A thread of its own writes, because a disk may hang, and only acts may wait for it.

    Raises:
        NunatakError: `audit_log_failed`, the file cannot be opened or made.
    """

    path: Path
    _pool: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, 1, AUDIT_THREADS), init=False
    )

    def __post_init__(self) -> None:
        self._append(b"")

    def close(self) -> None:
        """End the thread; one that waits for the disk is not waited for."""
        self._pool.shutdown(wait=False)

    @asynccontextmanager
    async def act(
        self, known: Mapping[str, object], code_of: Callable[[Exception], str]
    ) -> AsyncGenerator[None]:
        """Write a line before an act, and one after it with `done` or the code of its error.

        Raises:
            NunatakError: `audit_log_failed`, the first line cannot be written; nothing was done.
        """
        write = partial(asyncio.get_running_loop().run_in_executor, self._pool, self._write, known)
        begun, outcome = write("begun"), "unknown"
        try:
            await asyncio.shield(begun)
            yield
            outcome = "done"
        except Exception as error:
            outcome = code_of(error)
            raise
        finally:
            try:
                await begun
                await write(outcome)
            except NunatakError as error:
                # The act cannot be undone, and its caller must learn its outcome.
                logger.warning(
                    "no line of the outcome of %s: %s",
                    known.get("request_id"),
                    outcome,
                    exc_info=error,
                )

    def _write(self, known: Mapping[str, object], outcome: str) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append(json.dumps({"at": at, **known, "outcome": outcome}).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        try:
            descriptor = os.open(self.path, _FLAGS, 0o600)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(errno.EINVAL, "it must be a regular file")
                if line and found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
                    line = b"\n" + line  # After a line that was cut short by a full disk.
                if os.write(descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NunatakError("audit_log_failed", reason=error.strerror) from error
