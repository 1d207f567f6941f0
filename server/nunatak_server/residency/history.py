"""Use history: how often each version was asked lately, whether it is in memory or not.

A count halves with every so many uses of all versions together. So it needs no clock, follows
tasks whose traffic moves, and what was evicted comes back with the rank that its use gives it.
"""

from nunatak_server.residency.keys import VersionKey

USES_PER_HALF_LIFE = 8
"""Of each version, on average, until a count has halved; decision 7 says how it was chosen."""
MIN_HALF_LIFE = 256
MAX_VERSIONS = 4096


class UseHistory:
    """Counts of uses that fade; bounded, the least used versions are forgotten first."""

    def __init__(self, *, max_versions: int = MAX_VERSIONS) -> None:
        self._max_versions = max_versions
        self._now = 0
        self._counts: dict[VersionKey, tuple[float, int]] = {}

    def record(self, key: VersionKey) -> None:
        """Count one use."""
        self._now += 1
        self._counts[key] = (self.count(key) + 1, self._now)
        if len(self._counts) > self._max_versions:
            self._forget_half()

    def count(self, key: VersionKey) -> float:
        """Return how often a version was used lately; 0 for one that is not known."""
        count, at = self._counts.get(key, (0.0, self._now))
        half_life = max(MIN_HALF_LIFE, USES_PER_HALF_LIFE * len(self._counts))
        return count * 0.5 ** ((self._now - at) / half_life)

    def _forget_half(self) -> None:
        kept = sorted(self._counts, key=self.count, reverse=True)[: self._max_versions // 2]
        self._counts = {key: self._counts[key] for key in kept}
