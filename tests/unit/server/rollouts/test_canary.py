"""The choice between an alias's own version and its canary, which answers once it is proven."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.drafts import make_draft
from doubles.engines import FakeEngine
from doubles.leases import settle, until
from doubles.rendering import rendered
from doubles.services import Bench, add_versions, ask_for, make_service
from doubles.serving import FakeStore, ManualClock
from doubles.tasks import numbered
from nunatak_contract.manifest import TaskManifest
from nunatak_model import Backbone
from nunatak_registry import CorruptBlobError, SharedTraffic, Traffic
from nunatak_server.errors import DeadlineExceededError
from nunatak_server.predict.prepare import choose, point_of
from nunatak_server.predict.types import Handling, TaskPrediction
from nunatak_server.rollouts.rollouts import RETRY_S, Arm

KEYS = [f"user-{number}" for number in range(4000)]


async def version_for(bench: Bench[FakeEngine], routing_key: str = "user-1") -> int:
    prediction = await bench.service.predict(ask_for("tone", routing_key=routing_key))
    (result,) = prediction.results
    assert isinstance(result, TaskPrediction)
    return result.version


OWN, CANARY, SHADOW = (numbered(make_draft("tone")[0], version=it) for it in (3, 4, 5))


def split(share: float) -> Traffic:
    return Traffic(manifest=OWN, canary=SharedTraffic(manifest=CANARY, share=share))


def chosen_version(traffic: Traffic, key: str) -> int:
    chosen = choose(traffic, routing_key=key, draw=lambda: 0.5, may_answer=lambda _: True)
    return chosen.manifest.version


async def test_a_canary_that_cannot_be_loaded_gets_no_request_and_is_tried_again_later(
    backbone: Backbone, store: FakeStore
) -> None:
    clock = ManualClock()
    own, canary = add_versions(store, canary=1.0)
    store.broken[canary.reference] = CorruptBlobError("ab" * 32, "is gone")
    bench = make_service(backbone, store, FakeEngine(), clock=clock)
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
    backbone: Backbone, store: FakeStore
) -> None:
    own, canary = add_versions(store, canary=1.0)
    bench = make_service(backbone, store, FakeEngine())
    await bench.residency.preload(own)
    await bench.residency.preload(canary)
    assert await version_for(bench, "user-1") == 2

    bench.residency.evict("tone", 2)

    assert await version_for(bench, "user-1") == 2


async def test_a_canary_that_is_late_is_counted_as_such(
    backbone: Backbone, store: FakeStore
) -> None:
    _, canary = add_versions(store, canary=1.0)
    bench = make_service(backbone, store, FakeEngine())
    bench.engine.answers_at_once = False
    await bench.residency.preload(canary)

    with pytest.raises(DeadlineExceededError):
        await bench.service.predict(ask_for("tone", deadline_s=0.05))

    labels = 'arm="canary",outcome="deadline_exceeded",task="tone"'
    assert f"nunatak_split_requests_total{{{labels}}} 1.0" in rendered(bench.metrics)


@given(key=st.text(min_size=1, max_size=50), share=st.floats(0.001, 1), more=st.floats(0.001, 1))
def test_a_share_that_grows_takes_no_key_back_from_the_canary(
    key: str, share: float, more: float
) -> None:
    small, large = sorted((share, more))

    if chosen_version(split(small), key) == CANARY.version:
        assert chosen_version(split(large), key) == CANARY.version


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9, 1.0])
def test_keys_are_split_as_the_share_says(share: float) -> None:
    taken = sum(chosen_version(split(share), key) == CANARY.version for key in KEYS)

    # Four standard deviations of a fair choice.
    assert abs(taken / len(KEYS) - share) <= 4 * (share * (1 - share) / len(KEYS)) ** 0.5


def test_different_canaries_are_tried_by_different_keys() -> None:
    first, second = ({key for key in KEYS if point_of(key, m) < 0.1} for m in (CANARY, SHADOW))

    assert len(first & second) < 0.03 * len(KEYS)


def test_points_of_keys_do_not_change_between_releases() -> None:
    assert point_of("user-1", CANARY) == pytest.approx(0.9322517787833675, abs=1e-12)


def test_a_request_without_a_key_has_one_of_its_own() -> None:
    requests = [Handling(default_deadline_s=1) for _ in range(2000)]
    chosen = [chosen_version(split(0.5), it.routing_key) for it in requests]

    # All parts of a request are asked with its key.
    parts = [chosen_version(split(0.5), replace(it).routing_key) for it in requests]

    assert chosen == parts
    assert abs(chosen.count(CANARY.version) - 1000) < 100


@pytest.mark.parametrize(
    ("draw", "arm", "shadow"),
    [
        (0.3, Arm.CANARY, None),
        (0.3, Arm.ALIAS, SHADOW),
        (0.7, Arm.ALIAS, None),
        (0.3, None, SHADOW),
    ],
)
def test_a_shadow_runs_along_with_the_alias_alone_and_on_its_share(
    draw: float, arm: Arm | None, shadow: TaskManifest | None
) -> None:
    canary = SharedTraffic(manifest=CANARY, share=float(arm is Arm.CANARY)) if arm else None
    shared = SharedTraffic(manifest=SHADOW, share=0.5)
    traffic = Traffic(manifest=OWN, canary=canary, shadow=shared)

    chosen = choose(traffic, routing_key="a", draw=lambda: draw, may_answer=lambda _: True)

    assert (chosen.arm, chosen.shadow) == (arm, shadow)
