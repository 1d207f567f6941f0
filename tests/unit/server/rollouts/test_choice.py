"""The laws of the choice between an alias's own version and its canary."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.drafts import make_draft
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import SharedTraffic, Traffic
from nunatak_server.rollouts.rollouts import Arm, choose, point_of


def manifest(version: int, task: str = "tone") -> TaskManifest:
    draft, _ = make_draft(task=task)
    return TaskManifest(**draft.model_dump(), version=version)


OWN, CANARY, SHADOW = manifest(3), manifest(4), manifest(5)
KEYS = [f"user-{number}" for number in range(4000)]


def split(share: float, *, canary: TaskManifest = CANARY) -> Traffic:
    return Traffic(manifest=OWN, canary=SharedTraffic(manifest=canary, share=share))


def version_for(
    traffic: Traffic,
    key: str | None,
    *,
    draw: Callable[[], float] = lambda: 0.5,
    may_answer: bool = True,
) -> int:
    chosen = choose(traffic, routing_key=key, draw=draw, may_answer=lambda _: may_answer)
    return chosen.manifest.version


@given(key=st.text(min_size=1, max_size=50), share=st.floats(0.001, 1))
def test_one_key_gets_one_version_while_the_split_stands(key: str, share: float) -> None:
    chosen = {version_for(split(share), key, draw=iter([0.0, 0.9]).__next__) for _ in range(2)}

    assert len(chosen) == 1


@given(key=st.text(min_size=1, max_size=50), share=st.floats(0.001, 1), more=st.floats(0.001, 1))
def test_a_share_that_grows_takes_no_key_back_from_the_canary(
    key: str, share: float, more: float
) -> None:
    small, large = sorted((share, more))

    if version_for(split(small), key) == CANARY.version:
        assert version_for(split(large), key) == CANARY.version


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_keys_are_split_as_the_share_says(share: float) -> None:
    taken = sum(version_for(split(share), key) == CANARY.version for key in KEYS)

    # Four standard deviations of a fair choice.
    assert abs(taken / len(KEYS) - share) < 4 * (share * (1 - share) / len(KEYS)) ** 0.5


def test_every_key_goes_to_a_canary_of_share_one() -> None:
    assert {version_for(split(1.0), key) for key in KEYS} == {CANARY.version}


def test_different_canaries_are_tried_by_different_keys() -> None:
    first, second = ({key for key in KEYS if point_of(key, m) < 0.1} for m in (CANARY, SHADOW))

    assert len(first & second) < 0.03 * len(KEYS)


def test_points_of_keys_do_not_change_between_releases() -> None:
    assert point_of("user-1", CANARY) == pytest.approx(0.9322517787833675, abs=1e-12)


def test_without_a_key_the_draw_decides() -> None:
    assert version_for(split(0.1), None, draw=lambda: 0.0999) == CANARY.version
    assert version_for(split(0.1), None, draw=lambda: 0.1) == OWN.version


@pytest.mark.parametrize("key", [None, "user-1"])
def test_a_canary_that_may_not_answer_leaves_its_share_to_the_alias(key: str | None) -> None:
    traffic = split(1.0)

    assert version_for(traffic, key, may_answer=False) == OWN.version


def test_an_alias_without_a_canary_has_no_arm() -> None:
    chosen = choose(
        Traffic(manifest=OWN), routing_key="a", draw=lambda: 0.0, may_answer=lambda _: True
    )

    assert (chosen.manifest, chosen.arm, chosen.shadow) == (OWN, None, None)


@pytest.mark.parametrize(
    ("draw", "arm", "shadow"),
    [(0.05, Arm.CANARY, None), (0.3, Arm.ALIAS, SHADOW), (0.7, Arm.ALIAS, None)],
)
def test_a_shadow_runs_along_with_the_alias_alone_and_on_its_share(
    draw: float, arm: Arm, shadow: TaskManifest | None
) -> None:
    traffic = Traffic(
        manifest=OWN,
        canary=SharedTraffic(manifest=CANARY, share=0.1),
        shadow=SharedTraffic(manifest=SHADOW, share=0.5),
    )

    chosen = choose(traffic, routing_key=None, draw=lambda: draw, may_answer=lambda _: True)

    assert (chosen.arm, chosen.shadow) == (arm, shadow)
