"""The base of everything that reads and changes one registry."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime

from nunatak_registry.blobs.blobs import BlobStore
from nunatak_registry.index.index import Change, Index

Clock = Callable[[], datetime]


class Store:
    """The index, the blobs and the clock of one registry, which threads and processes share."""

    def __init__(self, *, index: Index, blobs: BlobStore, clock: Clock) -> None:
        self._index = index
        self._blobs = blobs
        self._clock = clock

    @contextmanager
    def _writing(self) -> Generator[Change]:
        with self._index.writing() as change:
            self._blobs.check_writable()
            yield change
