"""Loads: the time of a first load, a repeated load, and a load from checked bytes in main memory.

The backbone is the embedded one. The first load of a version computes its probe, and later loads do
not. Each load reads bytes whose SHA-256 was checked before. The three kinds run in turns, one load
at a time, on one thread as in a server.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.harness.recording import figures_parser, open_sheet
from benchmarks.server.tenants import publish
from nunatak_artifact import PARAMETERS_ROLE, load_task
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_model import DEFAULT_BACKBONE, load_backbone, pack_backbone
from nunatak_registry import Registry
from nunatak_server.backbones import Backbones
from nunatak_server.residency.loading import VersionLoader
from nunatak_server.residency.loads import LoadThrottle
from nunatak_server.residency.memory import HostTier

METHODS: dict[str, Method] = {
    "lora": Lora(rank=8, alpha=16, targets=QUERY_AND_VALUE),
    "top1": TopK(num_layers=1),
    "top3": TopK(num_layers=3),
}
HOST_BYTES = 256 * 1024**2


def main() -> None:
    """Measure and record."""
    _, sheet = open_sheet(figures_parser(__doc__, rounds=20))
    torch.set_num_threads(1)
    backbone = pack_backbone(load_backbone(DEFAULT_BACKBONE))
    with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
        for name, method in METHODS.items():
            manifest = publish(registry, backbone, name, seed=0, method=method)
            read = partial(registry.read_blob, role=PARAMETERS_ROLE)
            tiers = (HostTier(read, budget_bytes=num_bytes) for num_bytes in (0, HOST_BYTES))
            from_store, from_host = (
                VersionLoader(Backbones(backbone), tier, throttle=LoadThrottle(lambda: False))
                for tier in tiers
            )
            ways: dict[str, Callable[[], object]] = {
                "first": lambda it=manifest: load_task(it, registry.read_blob(it), backbone),
                "again": partial(from_store, manifest),
                "host": partial(from_host, manifest),
            }
            samples = {way: list[float]() for way in ways}
            for number in range(sheet.rounds + 1):
                for way, load in ways.items():
                    started = time.perf_counter()
                    load()
                    if number:  # the first round warms up
                        samples[way].append(1000 * (time.perf_counter() - started))
            for way, values in samples.items():
                sheet.record(f"server.load.{name}.{way}_ms", values, unit="ms")


if __name__ == "__main__":
    main()
