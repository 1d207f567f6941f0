from doubles.rendering import rendered
from nunatak_contract.memory import TrunkCacheMemory
from nunatak_server.telemetry.metrics import Metrics, TrunkCacheCollector

STATS = TrunkCacheMemory(
    states=2, bytes=300, max_bytes=1000, hits=7, misses=5, evictions=3, saved_tokens=70
)


def test_everything_the_cache_counts_is_shown() -> None:
    metrics = Metrics()
    metrics.include(TrunkCacheCollector(lambda: STATS))

    text = rendered(metrics)

    assert "nunatak_trunk_cache_hits_total 7.0" in text
    assert "nunatak_trunk_cache_misses_total 5.0" in text
    assert "nunatak_trunk_cache_evictions_total 3.0" in text
    assert "nunatak_trunk_cache_saved_tokens_total 70.0" in text
    assert "nunatak_trunk_cache_states 2.0" in text
    assert "nunatak_trunk_cache_bytes 300.0" in text
    assert "nunatak_trunk_cache_max_bytes 1000.0" in text


def test_each_rendering_shows_the_cache_as_it_is_then() -> None:
    stats = [STATS]
    metrics = Metrics()
    metrics.include(TrunkCacheCollector(lambda: stats[-1]))
    before = rendered(metrics)

    stats.append(STATS.model_copy(update={"hits": 8}))

    assert "nunatak_trunk_cache_hits_total 7.0" in before
    assert "nunatak_trunk_cache_hits_total 8.0" in rendered(metrics)
