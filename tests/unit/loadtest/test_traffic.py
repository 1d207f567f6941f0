"""Laws of the drawn requests and their times."""

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.refusals import raises
from nunatak_loadtest.process import LOCUSTFILE
from nunatak_loadtest.scenarios import FEWEST_USERS, MOST_USERS, SCENARIOS, Scenario, scenario_named
from nunatak_loadtest.traffic import Requests, gaps, read_texts, task_weights

TASKS = tuple(f"task{number}" for number in range(16))
PLAIN = Scenario(name="x")
STEPS = Scenario(name="x", steps=((1, 10), (4, 5)), warm_up_s=2)


@pytest.mark.parametrize("cv", [1.0, 4.0, 0.25], ids=["poisson", "bursts", "steady"])
def test_gaps_have_their_mean_and_coefficient_of_variation(cv: float) -> None:
    found = list(itertools.islice(gaps(50, cv, seed=1), 20_000))

    assert abs(mean(found) * 50 - 1) < 0.1
    assert abs(stdev(found) / mean(found) / cv - 1) < 0.1


def test_requests_are_a_function_of_their_seed() -> None:
    one, same, other = (
        [requests.draw() for _ in range(20)]
        for requests in (Requests(PLAIN, TASKS, seed=seed) for seed in (1, 1, 2))
    )

    assert one == same
    assert one != other


# Shares of the top task and of the top tenth of 200 tasks, for the settings of S-LoRA and Punica.
@pytest.mark.parametrize(
    ("zipf", "top", "tenth"), [(0.8, 0.10, 0.47), (1.0, 0.17, 0.61), (1.2, 0.26, 0.74)]
)
def test_zipf_has_the_published_shares(zipf: float, top: float, tenth: float) -> None:
    weights = task_weights(zipf, 200)

    assert weights[0] == pytest.approx(top, abs=0.01)
    assert sum(weights[:20]) == pytest.approx(tenth, abs=0.01)


@given(num_tasks=st.integers(1, 300), zipf=st.floats(0.1, 3))
def test_weights_are_shares_from_most_to_least(num_tasks: int, zipf: float) -> None:
    weights = task_weights(zipf, num_tasks)

    assert sum(weights) == pytest.approx(1)
    assert list(weights) == sorted(weights, reverse=True)
    assert task_weights(0, num_tasks) == pytest.approx([1 / num_tasks] * num_tasks)


def test_tasks_are_asked_by_their_popularity() -> None:
    requests = Requests(Scenario(name="x", zipf=1), TASKS, seed=3)
    counts = Counter(tasks[0] for tasks, _ in (requests.draw() for _ in range(4000)))

    weights = task_weights(1, 16)
    assert counts["task0"] / 4000 == pytest.approx(weights[0], abs=0.03)
    assert counts["task15"] / 4000 == pytest.approx(weights[15], abs=0.03)


@pytest.mark.parametrize(("width", "asked"), [(1, 1), (8, 8), (40, 16)])
@pytest.mark.parametrize("zipf", [0.0, 2.0])
def test_request_asks_distinct_tasks_and_no_more_than_there_are(
    width: int, asked: int, zipf: float
) -> None:
    requests = Requests(Scenario(name="x", width=width, zipf=zipf), TASKS, seed=0)

    for _ in range(100):
        tasks, _ = requests.draw()
        assert len(set(tasks)) == len(tasks) == asked


def test_drawn_texts_have_their_lengths_and_do_not_repeat() -> None:
    scenario = Scenario(name="x", words=20, sigma=0.6, longest=128)
    requests = Requests(scenario, TASKS, seed=0)

    texts = [requests.draw_text() for _ in range(5000)]

    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[2500] == pytest.approx(20, abs=1)
    assert lengths[0] >= 1
    assert lengths[-1] <= 128
    assert len(set(texts)) > 4990


def test_without_deviation_all_texts_are_equally_long() -> None:
    requests = Requests(Scenario(name="x", words=14, sigma=0), TASKS, seed=0)

    assert {len(requests.draw_text().split()) for _ in range(50)} == {14}


def test_texts_of_a_file_are_its_lines_without_blank_ones(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("one two\n\n  three \n", encoding="utf-8")

    texts = read_texts(file)

    assert texts == ("one two", "three")
    requests = Requests(PLAIN, TASKS, seed=0, texts=texts)
    assert {requests.draw_text() for _ in range(50)} == set(texts)


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, "unreadable_file", "cannot be read"),
        (b"\n \n", "invalid_settings", "holds no text"),
        (b"\xff", "invalid_row", "not UTF-8"),
    ],
)
def test_file_without_texts_is_refused(
    tmp_path: Path, content: bytes | None, code: str, said: str
) -> None:
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_bytes(content)

    with raises(code, match=said):
        read_texts(file)


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


def test_only_the_locustfile_and_its_summary_import_locust() -> None:
    modules = sorted(it.stem for it in LOCUSTFILE.parent.glob("*.py"))
    light = [it for it in modules if it not in {"locustfile", "summary"}]
    imports = "\n".join(f"import nunatak_loadtest.{it}" for it in light)
    code = f"import sys\n{imports}\nimport nunatak_cli.main\nassert 'gevent' not in sys.modules"

    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own code

    assert done.returncode == 0
