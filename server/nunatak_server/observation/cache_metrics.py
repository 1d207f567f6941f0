"""Metrics of the trunk cache, read from the cache itself whenever metrics are rendered."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nunatak_model import TrunkCacheStats


class TrunkCacheCollector(Collector):
    """Turns what a cache counts into metrics; the forward pass pays nothing for them."""

    def __init__(self, stats: Callable[[], TrunkCacheStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics of the cache, as of now."""
        stats = self._stats()
        counters = (
            ("hits", "Trunk states that were read", stats.hits),
            ("misses", "Trunk states that had to be computed", stats.misses),
            ("evictions", "Trunk states dropped to keep the budget", stats.evictions),
            ("saved_tokens", "Tokens of the trunk states that were read", stats.saved_tokens),
        )
        for name, documentation, value in counters:
            yield CounterMetricFamily(f"nunatak_trunk_cache_{name}", documentation, value=value)
        gauges = (
            ("states", "Trunk states in memory", stats.num_states),
            ("bytes", "Bytes of trunk states in memory", stats.num_bytes),
            ("max_bytes", "Budget of the trunk cache", stats.max_bytes),
        )
        for name, documentation, value in gauges:
            yield GaugeMetricFamily(f"nunatak_trunk_cache_{name}", documentation, value=value)
