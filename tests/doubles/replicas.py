"""The rows of replicas in a registry, without their processes."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from nunatak_contract.wire import ReplicaLoad
from nunatak_registry import Beat, Generation, Registry

NEVER: Final = Generation(number=0, token="of no index")  # noqa: S106 - no password
SOUND: Final = Beat(
    key="one:key",
    id="one",
    address="one.example:8080",
    release="0.1.0",
    started=datetime(2026, 1, 1, tzinfo=UTC),
    lease_s=3600.0,
    seen=NEVER,
    load=ReplicaLoad(ready=True, waiting=3, running=2, versions=1, version_bytes=400),
)


def beat(registry: Registry, name: str = "one", **changes: Any) -> int:  # noqa: ANN401 - fields of a row
    """Write a row that confirms the present generation; return the number of the other rows."""
    values = {"key": f"{name}:key", "id": name, "seen": registry.generation()} | changes
    return registry.replicas.beat(replace(SOUND, **values))  # pyrefly: ignore[bad-argument-type]
