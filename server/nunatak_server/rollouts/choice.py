"""The choice between an alias's own version and its canary, and whether a shadow runs along.

A routing key makes the choice sticky. A key has, for each canary version, one fixed point in
[0, 1), and goes to the canary while its point lies below the share. So equal keys get one version
while the split stands, on every server and after every restart; a share that grows takes keys to
the canary and never one back; and points of different canaries are independent, so that it is not
always the same callers who try what is new.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Traffic

POINT_BYTES = 6
"""As many bits as a float holds exactly, so that no point rounds up to 1."""


class Arm(StrEnum):
    """Which version of a split alias answers."""

    ALIAS = "alias"
    CANARY = "canary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The version that answers, and the one that runs along."""

    manifest: TaskManifest
    arm: Arm | None = None
    """None where the alias is not split."""
    shadow: TaskManifest | None = None

    @property
    def manifests(self) -> tuple[TaskManifest, ...]:
        """Every version that reads the inputs."""
        return (self.manifest,) if self.shadow is None else (self.manifest, self.shadow)


def choose(
    traffic: Traffic,
    *,
    routing_key: str | None,
    draw: Callable[[], float],
    may_answer: Callable[[TaskManifest], bool],
) -> Chosen:
    """Choose for one request; without a routing key by `draw`, which gives numbers in [0, 1).

    A canary that may not answer yet leaves its share to the alias's own version. A shadow runs
    along with that version alone: what a canary answers is no measure for it.
    """
    canary, shadow = traffic.canary, traffic.shadow
    arm = None if canary is None else Arm.ALIAS
    if canary is not None:
        point = draw() if routing_key is None else point_of(routing_key, canary.manifest)
        if point < canary.share and may_answer(canary.manifest):
            return Chosen(manifest=canary.manifest, arm=Arm.CANARY)
    runs_along = shadow is not None and draw() < shadow.share
    return Chosen(
        manifest=traffic.manifest,
        arm=arm,
        shadow=shadow.manifest if shadow is not None and runs_along else None,
    )


def point_of(routing_key: str, canary: TaskManifest) -> float:
    """Return the point of a key in [0, 1): uniform over keys, fixed for each canary version."""
    digest = hashlib.sha256(f"{canary.reference}\0{routing_key}".encode()).digest()
    return int.from_bytes(digest[:POINT_BYTES], "big") / 256**POINT_BYTES
