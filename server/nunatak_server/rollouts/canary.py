"""The choice between an alias's own version and its canary, and the validation of candidates.

`choose` picks the version, and decides whether the shadow runs. A routing key makes the choice
sticky. For each canary version, a key has one fixed point in [0, 1). The canary answers while this
point is below the canary's share. Therefore:

- equal keys get one version while the canary runs, on every server and after every restart;
- a larger share moves keys to the canary, and moves no key back;
- the points of different canaries are independent, so different callers try different canaries.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Traffic
from nunatak_server.residency.resident_set import VersionKey, key_of

POINT_BYTES: Final = 6
"""A float holds 48 bits exactly, so no point rounds up to 1."""
RETRY_S: Final = 5.0
"""Time between two attempts to load a candidate."""
MAX_VALIDATED: Final = 10_000
"""Most remembered candidates, far above real use. A full set is cleared."""


class Arm(StrEnum):
    """The answering version of an alias with a canary."""

    ALIAS = "alias"
    CANARY = "canary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The version that answers, and the shadow if it runs."""

    manifest: TaskManifest
    arm: Arm | None = None
    """The answering version; None if the alias has no canary."""
    shadow: TaskManifest | None = None


def choose(
    traffic: Traffic,
    *,
    routing_key: str | None,
    draw: Callable[[], float],
    may_answer: Callable[[TaskManifest], bool],
) -> Chosen:
    """Choose the versions for one request.

    While the canary may not answer, the alias's own version gets the canary's share. The shadow
    runs only where the alias's own version answers, because a report compares these two versions.
    """
    canary, shadow = traffic.canary, traffic.shadow
    arm = None if canary is None else Arm.ALIAS
    if canary is not None:
        point = draw() if routing_key is None else point_of(routing_key, canary.manifest)
        if point < canary.share and may_answer(canary.manifest):
            return Chosen(manifest=canary.manifest, arm=Arm.CANARY)
    runs_shadow = shadow is not None and draw() < shadow.share
    return Chosen(
        manifest=traffic.manifest,
        arm=arm,
        shadow=shadow.manifest if shadow is not None and runs_shadow else None,
    )


def point_of(routing_key: str, canary: TaskManifest) -> float:
    """Return the point of a key in [0, 1): uniform over keys, fixed for each canary version."""
    digest = hashlib.sha256(f"{canary.reference}\0{routing_key}".encode()).digest()
    return int.from_bytes(digest[:POINT_BYTES], "big") / 256**POINT_BYTES


class CandidateValidation:
    """Knows the candidates that this server has validated; only the event loop thread may use it.

    The first request for an alias loads its candidate in the background, while the alias's own
    version answers. A load includes the parity probe. A validated candidate may be evicted and
    loaded again like any other version.
    """

    def __init__(
        self,
        *,
        is_resident: Callable[[TaskManifest], bool],
        preload: Callable[[TaskManifest], Awaitable[object]],
        clock: Callable[[], float],
    ) -> None:
        self._is_resident = is_resident
        self._preload = preload
        self._clock = clock
        self._validated: set[VersionKey] = set()
        self._retry_at: dict[VersionKey, float] = {}
        self._loading: dict[VersionKey, asyncio.Task[None]] = {}

    def is_validated(self, manifest: TaskManifest) -> bool:
        key = key_of(manifest)
        if key in self._validated:
            return True
        if not self._is_resident(manifest):
            self.warm(manifest)
            return False
        self._remember(key)
        return True

    def warm(self, manifest: TaskManifest) -> None:
        """Load a candidate in the background, at most once in `RETRY_S` seconds."""
        key, now = key_of(manifest), self._clock()
        if key in self._loading or now < self._retry_at.get(key, now):
            return
        if len(self._retry_at) >= MAX_VALIDATED:
            self._retry_at.clear()
        self._retry_at[key] = now + RETRY_S
        loading = asyncio.create_task(self._load(manifest))
        self._loading[key] = loading
        loading.add_done_callback(lambda _: self._loading.pop(key))

    async def aclose(self) -> None:
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    async def _load(self, manifest: TaskManifest) -> None:
        try:
            await self._preload(manifest)
        except NunatakError:
            # `Loads` has logged the error. A later attempt may succeed: blobs can be repaired.
            return
        self._remember(key_of(manifest))

    def _remember(self, key: VersionKey) -> None:
        if len(self._validated) >= MAX_VALIDATED:
            self._validated.clear()
        self._validated.add(key)
