"""The versioned store of tasks."""

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError as NunatakError
from nunatak_registry.aliases import (
    AliasEvent,
    AliasEventKind,
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    SharedTraffic,
    Traffic,
)
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
from nunatak_registry.index.snapshot import Generation, ListedTask, ListedVersion
from nunatak_registry.locations import default_location as default_location
from nunatak_registry.replicas import LOOK_S, Beat, replicas_behind
from nunatak_registry.store import Registry as Registry
from nunatak_registry.upkeep import Finding, FindingKind
