"""Trunk states of whole data sets: computed once, kept in memory or on disk, read by every run."""

from nunatak_training.trunk.disk import FOLDER, DiskTrunkStore
from nunatak_training.trunk.entries import StoredEntry, make_room, stored_entries
from nunatak_training.trunk.inputs import InputSet
from nunatak_training.trunk.memory import MemoryTrunkStore
from nunatak_training.trunk.states import SetStates
from nunatak_training.trunk.store import JoinedStates, TrunkStore

__all__ = [
    "FOLDER",
    "DiskTrunkStore",
    "InputSet",
    "JoinedStates",
    "MemoryTrunkStore",
    "SetStates",
    "StoredEntry",
    "TrunkStore",
    "make_room",
    "stored_entries",
]
