"""Laws of the drawn requests and their times."""

import itertools
from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.refusals import raises
from nunatak_loadtest.scenarios import Requests, Scenario, gaps, read_texts, task_weights

TASKS = tuple(f"task{number}" for number in range(16))
PLAIN = Scenario(name="x")


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
