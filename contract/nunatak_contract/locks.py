"""The lock of a folder, which leaves no file where people look, and ends with its process."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked_folder(folder: Path, *, waits: bool = True) -> Generator[int]:
    """Hold the lock of a folder, and yield the folder's descriptor.

    Raises:
        OSError: another process has the lock and this one does not wait, or there are no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
