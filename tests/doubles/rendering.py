"""Metrics as text, with the memory of a server that holds little."""

from dataclasses import replace

from nunatak_contract.memory import DeviceTierMemory, HostTierMemory
from nunatak_model import TrunkCache
from nunatak_server.telemetry.memory import MemoryLedger, ServerState
from nunatak_server.telemetry.metrics import Metrics

DEVICE = DeviceTierMemory(
    budget_bytes=1000, bytes=200, pinned_bytes=50, loading_bytes=25, versions=2
)
HOST = HostTierMemory(budget_bytes=4000, bytes=700, blobs=3, hits=5, misses=6)
STATE = ServerState(
    build={"version": "1.0", "backbone": "tiny", "device": "cpu", "dtype": "float32"},
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
    trunk=TrunkCache(max_bytes=0).stats,
    task_label=str,
)


def rendered(metrics: Metrics, state: ServerState = STATE) -> str:
    return metrics.render(replace(state, task_label=metrics.task_label)).decode()
