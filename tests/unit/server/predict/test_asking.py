"""Versions are leased during their requests, and released when the caller goes."""

import asyncio

import pytest

from doubles.backbones import tiny_backbone
from doubles.leases import names, until
from doubles.services import Bench, FakeEngine, make_bench
from doubles.tasks import random_parameters, spec_of
from nunatak_contract.methods import TopK
from nunatak_model import build_branch


def new_bench() -> Bench[FakeEngine]:
    backbone = tiny_backbone(num_layers=2)
    spec = spec_of(backbone, TopK(num_layers=1), num_labels=2)
    branch = build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))
    return make_bench(backbone, branch)


@pytest.mark.parametrize("num_turns", range(12))
async def test_a_caller_that_goes_while_cold_tasks_arrive_leaves_no_lease(num_turns: int) -> None:
    bench = new_bench()
    bench.engine.is_silent = True
    bench.store.add("one")
    bench.store.add("two")
    asking = asyncio.create_task(bench.ask("one", "two"))
    await until(lambda: len(names(bench.residency)) == 2)
    for _ in range(num_turns):
        await asyncio.sleep(0)

    asking.cancel()
    await asyncio.wait([asking])

    assert bench.residency.evict("one") == (1,)
    assert bench.residency.evict("two") == (1,)
