"""Metrics as text, with the memory of a server that holds little."""

from nunatak_server.metrics import Metrics
from nunatak_server.residency.host import HostStats
from nunatak_server.residency.shelf import ShelfStats

DEVICE = ShelfStats(
    budget_bytes=1000,
    resident_bytes=200,
    pinned_bytes=50,
    loading_bytes=25,
    num_resident=2,
    num_pinned=1,
)
HOST = HostStats(budget_bytes=4000, num_bytes=700, num_blobs=3, hits=5, misses=6)


def rendered(metrics: Metrics) -> str:
    """Return all metrics as text."""
    return metrics.render(resident_bytes=300, device=DEVICE, host=HOST).decode()
