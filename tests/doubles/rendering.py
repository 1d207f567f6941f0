"""Metrics as text, with the memory of a server that holds little."""

from nunatak_server.residency.memory import HostStats
from nunatak_server.residency.resident_set import ResidentStats
from nunatak_server.telemetry.memory import BuildInfo, MemoryLedger, ServerState
from nunatak_server.telemetry.metrics import Metrics

DEVICE = ResidentStats(
    budget_bytes=1000,
    resident_bytes=200,
    pinned_bytes=50,
    loading_bytes=25,
    num_resident=2,
)
HOST = HostStats(budget_bytes=4000, num_bytes=700, num_blobs=3, hits=5, misses=6)
STATE = ServerState(
    build=BuildInfo(version="1.0", backbone="tiny", device="cpu", dtype="float32"),
    is_ready=True,
    reads_registry=True,
    holds_versions=True,
    num_waiting=2,
    num_running=1,
    num_admitted_tokens=44,
    num_body_bytes=555,
    ledger=MemoryLedger(backbone_bytes=100, tasks_bytes=200, dedicated_bytes=900),
    device=DEVICE,
    task_bytes={"intent": 120, "topic": 80},
    host=HOST,
)


def rendered(metrics: Metrics, state: ServerState = STATE) -> str:
    """Return all metrics as text."""
    return metrics.render(state).decode()
