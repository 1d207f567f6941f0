"""Results in the form of a measurement, with simple numbers."""

from benchmarks.savings.results import MemoryLine, MemoryPoint, Origin, Race, Racer, Rate, Round
from nunatak_client import MemoryReport, ServerInfo
from nunatak_loadtest.report import QUANTILES

ORIGIN = Origin(command="measure", commit="abc", date="2026-01-01", hardware="2 cores")
OURS, THEIRS = (300e6, 1e6), (200e6, 101e6)


def line(
    system: str, base_bytes: float, slope_bytes: float, *, counts: tuple[int, ...]
) -> MemoryLine:
    points = tuple(
        MemoryPoint(
            tasks=it, pss_bytes=int(base_bytes + slope_bytes * it), rss_bytes=0, uss_bytes=0
        )
        for it in counts
    )
    return MemoryLine(
        origin=ORIGIN,
        backbone="minilm",
        system=system,
        title=system,
        is_ours=system == "nunatak",
        points=points,
        base_bytes=base_bytes,
        slope_bytes=slope_bytes,
        parameter_bytes_per_task=1e6,
        full_model_bytes=91e6,
    )


def race(*rates: tuple[str, tuple[float, ...]]) -> Race:
    """A race with the goodput of every round by system."""
    racers = tuple(
        Racer(
            system=name,
            title=name,
            is_ours=name == "nunatak",
            rates=(
                Rate(offered_per_s=1, answered_per_s=1, p50_ms=1, p99_ms=3, met=True),
                Rate(offered_per_s=9, answered_per_s=8, p50_ms=9, p99_ms=400, met=False),
            ),
            quantiles_ms=tuple(1.0 + percent for percent in QUANTILES),
            rounds=tuple(Round(goodput_per_s=it, p50_ms=1, p99_ms=2, requests=10) for it in values),
        )
        for name, values in rates
    )
    return Race(
        origin=ORIGIN,
        workload="single",
        title="Single",
        objective_p99_ms=200,
        dtype="float32",
        racers=racers,
    )


SERVER = ServerInfo(
    name="nunatak",
    version="0.1.0",
    backbone={},
    device="cpu",
    dtype="float32",
    registry="folder",
    limits={},
)
MEMORY = MemoryReport.model_validate(
    {
        "backbone": {
            "name": "minilm",
            "digest": "d",
            "dtype": "float32",
            "bytes": 90_000_000,
            "parameters": 22_000_000,
        },
        "tasks": [
            {
                "task": "tone",
                "version": 3,
                "method": "topk",
                "split_depth": 3,
                "bytes": 14_000_000,
                "parameters": 1,
                "pinned": False,
            }
        ],
        "shared_bytes": 104_000_000,
        "dedicated_bytes": 208_000_000,
        "saved_share": 0.5,
        "saved_share_formula": 0.5,
        "tiers": {
            "device": {
                "bytes": 14_000_000,
                "budget_bytes": 100_000_000,
                "pinned_bytes": 0,
                "loading_bytes": 0,
                "versions": 1,
            },
            "host": {"bytes": 0, "budget_bytes": 0, "blobs": 0, "hits": 0, "misses": 1},
        },
        "trunk_cache": {
            "bytes": 0,
            "max_bytes": 0,
            "states": 0,
            "hits": 0,
            "misses": 0,
            "evictions": 0,
            "saved_tokens": 0,
        },
        "activations": {"peak_bytes": None},
        "process": {
            "rss_bytes": 500_000_000,
            "peak_rss_bytes": None,
            "pss_bytes": 400_000_000,
            "uss_bytes": None,
        },
    }
)
