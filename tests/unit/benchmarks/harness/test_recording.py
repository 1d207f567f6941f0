from pathlib import Path

import pytest

from benchmarks.harness.recording import deciles, latest, meets, record


def test_a_figure_is_the_median_with_first_and_last_decile(tmp_path: Path) -> None:
    samples = [float(number) for number in range(11)]

    figure = record("a.b", samples, unit="ms", command="c", file=tmp_path / "figures.jsonl")

    assert (figure.low, figure.value, figure.high, figure.runs) == (1.0, 5.0, 9.0, 11)


def test_one_sample_is_both_deciles() -> None:
    assert deciles([3.0]) == (3.0, 3.0)


def test_the_newest_figure_of_an_identifier_counts(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    for value in (1.0, 2.0):
        record("a.b", [value], unit="ms", command="c", goal="<= 1.5", file=file)

    assert latest(file)["a.b"].value == 2.0
    assert latest(file)["a.b"].met is False


@pytest.mark.parametrize(
    ("value", "goal", "met"), [(2.7, ">= 2.7", True), (2.69, ">= 2.7", False), (1.0, "<= 1", True)]
)
def test_a_goal_holds_at_its_bound(value: float, goal: str, *, met: bool) -> None:
    assert meets(value, goal) is met
