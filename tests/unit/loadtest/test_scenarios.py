"""Laws of scenarios: their users over time, and the changes that options make."""

import pytest

from doubles.refusals import raises
from nunatak_loadtest.scenarios import FEWEST_USERS, MOST_USERS, SCENARIOS, Scenario, scenario_named

STEPS = Scenario(name="x", steps=((1, 10), (4, 5)), warm_up_s=2)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.name)
def test_every_scenario_has_users_until_its_end_and_says_what_it_is(scenario: Scenario) -> None:
    end_s = scenario.warm_up_s + scenario.seconds

    assert scenario.title
    assert scenario_named(scenario.name) is scenario
    assert scenario.users_at(0)
    assert scenario.users_at(end_s - 0.01)
    assert scenario.users_at(end_s) is None


def test_unknown_scenario_names_the_known_ones() -> None:
    with raises("invalid_settings", match="smoke"):
        scenario_named("absent")


@pytest.mark.parametrize(("second", "users"), [(0, 1), (11.9, 1), (12, 4), (16.9, 4), (17, None)])
def test_steps_follow_each_other_and_the_first_is_warmed_up(
    second: float, users: int | None
) -> None:
    assert STEPS.users_at(second) == users


@pytest.mark.parametrize(
    ("rate", "users"), [(0.5, FEWEST_USERS), (100, 400), (100_000, MOST_USERS)]
)
def test_an_open_loop_has_users_for_its_rate_within_limits(rate: float, users: int) -> None:
    assert Scenario(name="x", rate_per_s=rate).users_at(0) == users


def test_users_close_the_loop_and_a_rate_opens_it_and_keeps_the_bursts() -> None:
    bursty = scenario_named("bursty")

    closed, faster = bursty.changed(users=3), bursty.changed(rate_per_s=5)

    assert (closed.rate_per_s, closed.users_at(0), closed.seconds) == (None, 3, 60)
    assert (faster.rate_per_s, faster.cv, faster.seconds) == (5, 4, 60)
    assert STEPS.changed(users=3).seconds == 15


def test_a_short_run_warms_up_no_longer_than_it_measures() -> None:
    short = scenario_named("single").changed(seconds=2)

    assert (short.seconds, short.warm_up_s) == (2, 2)


def test_options_that_exclude_each_other_are_refused() -> None:
    with raises("invalid_settings", match="not both"):
        STEPS.changed(users=3, rate_per_s=5)
    with raises("invalid_settings", match="steps of scenario 'x' take 15 s"):
        STEPS.changed(seconds=3)
    assert STEPS.changed(users=3, seconds=3).seconds == 3
