"""A canary answers its share, but nothing before this server has loaded and probed it."""

from collections.abc import Sequence
from typing import Any

import pytest

from doubles.engines import Withdrawing
from doubles.leases import settle, until
from doubles.rendering import rendered
from doubles.services import Bench, add_versions, ask_for, make_service
from doubles.serving import FakeStore, ManualClock
from nunatak_model import Backbone, Branch
from nunatak_registry import CorruptBlobError
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.types import TaskPrediction
from nunatak_server.rollouts.rollouts import RETRY_S
from nunatak_server.scheduler.rows import PendingRow, RowAnswer


class InstantEngine(Withdrawing):
    """Answers at once."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        for row in rows:
            row.future.set_result(
                RowAnswer(logits=[0.0, 1.0], queue_s=0.0, compute_s=0.0, batch_rows=1)
            )


class SilentEngine(Withdrawing):
    """Never answers."""

    def submit(self, rows: Sequence[PendingRow]) -> None:
        """Accept rows, and never answer."""


async def version_for(bench: Bench[Any], routing_key: str | None = None) -> int:
    prediction = await bench.service.predict(ask_for("tone", routing_key=routing_key))
    (result,) = prediction.results
    assert isinstance(result, TaskPrediction)
    return result.version


async def test_a_canary_gets_no_request_before_it_is_in_memory(
    backbone: Backbone, branch: Branch
) -> None:
    store = FakeStore(branch)
    own, canary = add_versions(store, canary=1.0)
    bench = make_service(backbone, store, InstantEngine())
    await bench.residency.preload(own)
    store.may_load.clear()

    assert [await version_for(bench) for _ in range(5)] == [1] * 5

    store.may_load.set()
    await until(lambda: bench.residency.is_resident(canary))
    assert await version_for(bench) == 2
    assert store.loaded == ["tone/1", "tone/2"]


async def test_a_canary_that_cannot_be_loaded_gets_no_request_and_is_tried_again_later(
    backbone: Backbone, branch: Branch
) -> None:
    store, clock = FakeStore(branch), ManualClock()
    own, canary = add_versions(store, canary=1.0)
    store.broken[canary.reference] = CorruptBlobError("ab" * 32, "is gone")
    bench = make_service(backbone, store, InstantEngine(), clock=clock)
    await bench.residency.preload(own)

    assert await version_for(bench) == 1
    await until(lambda: canary.reference in store.loaded)
    await until(lambda: not bench.residency.stats().loading_bytes)
    await settle()
    assert [await version_for(bench) for _ in range(5)] == [1] * 5
    assert store.loaded.count(canary.reference) == 1

    clock.now = RETRY_S
    del store.broken[canary.reference]
    assert await version_for(bench) == 1
    await until(lambda: bench.residency.is_resident(canary))
    assert await version_for(bench) == 2


async def test_a_canary_that_was_evicted_comes_back_for_its_requests(
    backbone: Backbone, branch: Branch
) -> None:
    store = FakeStore(branch)
    own, canary = add_versions(store, canary=1.0)
    bench = make_service(backbone, store, InstantEngine())
    await bench.residency.preload(own)
    await bench.residency.preload(canary)
    assert await version_for(bench, "user-1") == 2

    bench.residency.evict("tone", 2)

    assert await version_for(bench, "user-1") == 2


async def test_a_canary_that_is_late_is_counted_as_such(backbone: Backbone, branch: Branch) -> None:
    store = FakeStore(branch)
    _, canary = add_versions(store, canary=1.0)
    bench = make_service(backbone, store, SilentEngine())
    await bench.residency.preload(canary)

    with pytest.raises(DeadlineExceededError):
        await bench.service.predict(ask_for("tone", deadline_s=0.05))

    labels = 'arm="canary",outcome="deadline_exceeded",task="tone"'
    assert f"nunatak_split_requests_total{{{labels}}} 1.0" in rendered(bench.metrics)
