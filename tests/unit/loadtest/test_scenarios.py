"""Laws of scenarios, jobs and their files."""

from pathlib import Path

import pytest

from doubles.refusals import raises
from nunatak_loadtest import Job, Scenario, load_scenario, scenario_names
from nunatak_loadtest.scenario import Closed, FileTexts, Gamma, Poisson, Zipf, parse_scenario


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_of_the_package_is_one_and_says_what_it_is(name: str) -> None:
    scenario = load_scenario(name)

    assert scenario.name == name
    assert scenario.title


def test_kinds_choose_the_parts() -> None:
    assert load_scenario("bursty").arrivals == Gamma(rate_per_s=30, cv=4)
    assert load_scenario("zipf").popularity == Zipf(exponent=1.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("name = ", "no TOML", id="no-toml"),
        pytest.param("name = 'x'\nspeed = 3", "speed", id="unknown-name"),
        pytest.param("name = 'x'\nduration_s = 0", "duration_s", id="no-time"),
        pytest.param("name = 'x'\n[arrivals]\nkind = 'poisson'", "rate_per_s", id="no-rate"),
        pytest.param("name = 'x'\n[arrivals]\nkind = 'tide'", "arrivals", id="unknown-kind"),
        pytest.param("name = 'x'\nwidths = []", "widths", id="no-width"),
        pytest.param(
            "name = 'x'\nnum_tasks = 2\nwidths = [{ tasks = 3 }]", "3 tasks", id="too-wide"
        ),
    ],
)
def test_scenario_that_nobody_can_follow_is_refused_by_name(text: str, named: str) -> None:
    with raises("invalid_settings", match=named):
        parse_scenario(text, source="mine.toml")


def test_unknown_scenario_names_the_known_ones() -> None:
    with raises("invalid_settings", match="smoke"):
        load_scenario("absent")


def test_own_scenario_is_read_from_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("name = 'mine'")

    assert load_scenario(str(file)) == Scenario(name="mine")
    with raises("invalid_settings", match=r"absent\.toml"):
        load_scenario(str(tmp_path / "absent.toml"))


def test_changes_replace_parts_of_the_scenario(tmp_path: Path) -> None:
    scenario = Scenario(name="base")

    assert scenario.changed() == scenario
    assert scenario.changed(users=3).arrivals == Closed(users=3)
    assert scenario.changed(rate_per_s=3).arrivals == Poisson(rate_per_s=3)
    assert scenario.changed(duration_s=3).seconds == 3
    assert scenario.changed(text_file=tmp_path / "t").texts == FileTexts(path=str(tmp_path / "t"))
    with raises("invalid_settings"):
        scenario.changed(users=3, rate_per_s=3)


def test_another_rate_keeps_the_bursts_of_a_scenario() -> None:
    bursty = load_scenario("bursty")

    assert bursty.changed(rate_per_s=7).arrivals == Gamma(rate_per_s=7, cv=4)


def test_steps_have_their_own_duration() -> None:
    steps = load_scenario("steps")

    assert steps.seconds == 60
    with raises("invalid_settings", match="take 60 s together"):
        steps.changed(duration_s=5)
    assert steps.changed(users=2, duration_s=5).seconds == 5


@pytest.mark.parametrize("name", scenario_names())
def test_no_scenario_of_the_package_repeats_texts_or_draws_equal_texts_in_two_runs(
    name: str,
) -> None:
    scenario = load_scenario(name)

    assert not scenario.repeats_texts
    assert scenario.seed is None


@pytest.mark.parametrize("tasks", [(), (" ",), ("tone", "tone")])
def test_job_without_distinct_tasks_is_refused(tasks: tuple[str, ...]) -> None:
    with raises("invalid_settings"):
        Job.checked(tasks=tasks, scenario=Scenario(name="x"))
