"""The versioned store of tasks."""

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError
from nunatak_registry.aliases import (
    AliasEvent,
    AliasEventKind,
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    SharedTraffic,
    Traffic,
)
from nunatak_registry.copying import TaskCopy
from nunatak_registry.documents import Cards
from nunatak_registry.errors import (
    CorruptBlobError,
    InvalidArtifactError,
    InvalidManifestError,
    StoreReadOnlyError,
    StoreUnavailableError,
    TaskNotFoundError,
    VersionNotFoundError,
)
from nunatak_registry.index.records import Published, PublishedCard, PublishedPolicy
from nunatak_registry.index.snapshot import DamagedTask, Generation, ListedTask, ListedVersion
from nunatak_registry.locations import default_location
from nunatak_registry.replicas import LOOK_S, Beat, replicas_behind
from nunatak_registry.store import Registry
from nunatak_registry.upkeep import DEFAULT_GRACE_S, Collected, Finding, FindingKind

__all__ = [
    "DEFAULT_GRACE_S",
    "LOOK_S",
    "AliasEvent",
    "AliasEventKind",
    "Beat",
    "Candidate",
    "CandidateEvent",
    "CandidateEventKind",
    "CandidateRole",
    "Cards",
    "Collected",
    "CorruptBlobError",
    "DamagedTask",
    "Finding",
    "FindingKind",
    "Generation",
    "InvalidArtifactError",
    "InvalidManifestError",
    "ListedTask",
    "ListedVersion",
    "NunatakError",
    "Published",
    "PublishedCard",
    "PublishedPolicy",
    "Registry",
    "SharedTraffic",
    "StoreReadOnlyError",
    "StoreUnavailableError",
    "TaskCopy",
    "TaskNotFoundError",
    "Traffic",
    "VersionNotFoundError",
    "default_location",
    "replicas_behind",
]
