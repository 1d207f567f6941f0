"""Loading does not keep the processor from the batches."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.tasks import publish_tiny_task
from nunatak_registry import Registry
from nunatak_server.residency.giving_way import GivingWay
from nunatak_server.residency.host import HostTier
from nunatak_server.residency.loading import VersionLoading


@pytest.fixture(name="two_threads", autouse=True)
def compute_on_two_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_load_computes_on_its_own_thread_alone_and_gives_way_between_its_parts(
    tmp_path: Path,
) -> None:
    backbone, pauses = tiny_backbone(), list[int]()

    def rest(_seconds: float) -> None:
        pauses.append(torch.get_num_threads())

    give_way = GivingWay(lambda: True, rest=rest)
    with Registry.open(tmp_path) as registry, ThreadPoolExecutor(1) as threads:
        manifest = publish_tiny_task(registry, backbone)
        read = partial(registry.read_blob, pause=give_way)
        load = VersionLoading(backbone, HostTier(read, budget_bytes=0), give_way=give_way)

        task = threads.submit(load, manifest).result()

    assert task.manifest == manifest
    # After it was checked, was built and was converted; a tiny one has less than a megabyte.
    assert pauses == [1, 1, 1]
    assert torch.get_num_threads() == 2
