"""Eviction policies: seconds of loading per request, on drawn requests, with memory for a quarter.

64 versions of three sizes (LoRA, one top layer, three), whose loads take a fixed time and a time by
the byte, as measured. Every policy has the same loop around it: what is asked must come in, and
what is least worth by the policy goes.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recording import record

from nunatak_server.residency.history import UseHistory
from nunatak_server.residency.keys import VersionKey

NUM_VERSIONS, NUM_REQUESTS, NUM_PHASES = 64, 20_000, 5
SHARE = 0.25
SIZES = (150_000, 7_100_000, 21_300_000)
LOAD_S, LOAD_S_PER_BYTE = 0.01, 3e-9
SEEDS = (1, 2, 3)
COMMAND = "python benchmarks/eviction.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What a policy may know of a version."""

    key: VersionKey
    num_bytes: int

    @property
    def load_s(self) -> float:
        """How long its load takes."""
        return LOAD_S + LOAD_S_PER_BYTE * self.num_bytes


class Policy(Protocol):
    """Ranks versions."""

    def use(self, version: Version) -> None:
        """Take note of a request."""
        ...

    def worth(self, version: Version) -> float:
        """The version of the least worth goes first."""
        ...

    def evicted(self, version: Version) -> None:
        """Take note of an eviction."""
        ...


class LeastRecentlyUsed:
    """The usual one."""

    def __init__(self) -> None:
        self._now = 0
        self._used: dict[VersionKey, int] = {}

    def use(self, version: Version) -> None:
        """Move it to the end."""
        self._now += 1
        self._used[version.key] = self._now

    def worth(self, version: Version) -> float:
        """When it was used."""
        return self._used[version.key]

    def evicted(self, version: Version) -> None:
        """Forget nothing."""


class GreedyDualSizeFrequency:
    """Cherkasova 1998, HPL-98-69: uses x cost / size, above the worth of what went last."""

    def __init__(self) -> None:
        self._last = 0.0
        self._uses: Counter[VersionKey] = Counter()
        self._worth: dict[VersionKey, float] = {}

    def use(self, version: Version) -> None:
        """Raise its worth."""
        self._uses[version.key] += 1
        gain = self._uses[version.key] * version.load_s / version.num_bytes
        self._worth[version.key] = self._last + gain

    def worth(self, version: Version) -> float:
        """As of its last use."""
        return self._worth[version.key]

    def evicted(self, version: Version) -> None:
        """Age all that stay."""
        self._last = max(self._last, self._worth[version.key])
        del self._uses[version.key]


class FadingUses:
    """That of the server: uses that fade, remembered beyond eviction, x cost / size."""

    def __init__(self) -> None:
        self._history = UseHistory()

    def use(self, version: Version) -> None:
        """Count it."""
        self._history.record(version.key)

    def worth(self, version: Version) -> float:
        """Seconds of loading that a byte of it saves."""
        return self._history.count(version.key) * version.load_s / version.num_bytes

    def evicted(self, version: Version) -> None:
        """Forget nothing."""


POLICIES: dict[str, Callable[[], Policy]] = {
    "lru": LeastRecentlyUsed,
    "gdsf": GreedyDualSizeFrequency,
    "fading": FadingUses,
}
TRACES = ("uniform", "zipf", "drift", "scan")


def main() -> None:
    """Measure and record."""
    for trace in TRACES:
        for name, policy in POLICIES.items():
            samples = [1000 * seconds_per_request(policy(), trace, seed) for seed in SEEDS]
            figure = record(
                f"server.eviction.{trace}.{name}",
                samples,
                unit="ms of loading per request",
                command=COMMAND,
            )
            print(f"{figure.id}: {figure.value:.2f} ms ({figure.low:.2f} to {figure.high:.2f})")


def seconds_per_request(policy: Policy, trace: str, seed: int) -> float:
    """Ask for what the trace says, and add up the loads."""
    draw = random.Random(seed)
    versions = [
        Version(key=VersionKey(f"task-{index}", 1, ""), num_bytes=draw.choice(SIZES))
        for index in range(NUM_VERSIONS)
    ]
    budget = SHARE * sum(version.num_bytes for version in versions)
    resident, used, loading_s = set[Version](), 0, 0.0
    for index in requests(trace, draw):
        version = versions[index]
        policy.use(version)
        if version in resident:
            continue
        loading_s += version.load_s
        for victim in sorted(resident, key=policy.worth):
            if used + version.num_bytes <= budget:
                break
            resident.remove(victim)
            used -= victim.num_bytes
            policy.evicted(victim)
        resident.add(version)
        used += version.num_bytes
    return loading_s / NUM_REQUESTS


def requests(trace: str, draw: random.Random) -> Sequence[int]:
    """Which version each request asks for."""
    order = draw.sample(range(NUM_VERSIONS), NUM_VERSIONS)
    weights = [1 / rank for rank in range(1, NUM_VERSIONS + 1)]
    match trace:
        case "uniform":
            return draw.choices(order, k=NUM_REQUESTS)
        case "zipf":
            return draw.choices(order, weights, k=NUM_REQUESTS)
        case "drift":
            length = NUM_REQUESTS // NUM_PHASES
            phases = (draw.sample(order, NUM_VERSIONS) for _ in range(NUM_PHASES))
            return [index for phase in phases for index in draw.choices(phase, weights, k=length)]
        case _:
            # A hot dozen gets four fifths, and the rest is asked in turn.
            rest = NUM_VERSIONS - 12
            return [
                draw.choice(order[:12]) if draw.random() < 0.8 else order[12 + count % rest]
                for count in range(NUM_REQUESTS)
            ]


if __name__ == "__main__":
    main()
