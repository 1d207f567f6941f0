import math
from argparse import ArgumentParser
from collections.abc import Sequence

import pytest
import torch

from benchmarks.harness.rounds import (
    DisagreementError,
    System,
    fastest,
    interleave,
    race,
    ratios,
    require_one_thread,
)


def system(name: str, logits: Sequence[float], *, tolerance: float = 1e-3) -> System:
    answer = torch.tensor(logits).unsqueeze(1)
    return System(name=name, answer=lambda: answer, seconds=lambda: 1.0, tolerance=tolerance)


@pytest.mark.parametrize("wrong", [[1.0, 2.1], [math.nan, 2.0]])
def test_a_race_refuses_a_system_that_answers_differently(wrong: list[float]) -> None:
    with pytest.raises(DisagreementError, match="other differs from ours"):
        race([system("ours", [1.0, 2.0]), system("other", wrong)], rounds=1)


def test_a_system_may_differ_by_its_own_tolerance() -> None:
    near = system("other", [1.0, 2.1], tolerance=0.1)

    times = race([system("ours", [1.0, 2.0]), near], rounds=2)

    assert times == {"ours": [1.0, 1.0], "other": [1.0, 1.0]}


def test_a_system_that_answers_the_first_requests_alone_is_held_against_those() -> None:
    race([system("ours", [1.0, 2.0]), system("other", [1.0])], rounds=1)
    with pytest.raises(DisagreementError):
        race([system("ours", [1.0, 2.0]), system("other", [2.0])], rounds=1)


def test_every_round_runs_every_system_once_and_the_first_round_does_not_count() -> None:
    calls = list[str]()

    def run(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    names = ("a", "b", "c")
    times = interleave({name: lambda name=name: run(name) for name in names}, 3)

    rounds = [calls[begin : begin + 3] for begin in range(0, 12, 3)]
    assert [sorted(each) for each in rounds] == [["a", "b", "c"]] * 4
    assert len({tuple(each) for each in rounds}) > 1
    assert all(len(samples) == 3 and min(samples) > 3 for samples in times.values())


def test_ratios_are_taken_within_a_round() -> None:
    assert ratios({"slow": [4.0, 9.0], "fast": [2.0, 3.0]}, "slow", "fast") == [2.0, 3.0]


def test_the_fastest_has_the_lowest_median() -> None:
    assert fastest({"a": [1.0, 5.0, 6.0], "b": [4.0, 4.0, 9.0]}, ["a", "b"]) == "b"


def test_a_figure_of_cpu_time_is_refused_on_several_threads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        require_one_thread(ArgumentParser())
        torch.set_num_threads(2)
        with pytest.raises(SystemExit):
            require_one_thread(ArgumentParser())
    finally:
        torch.set_num_threads(before)
    assert "OMP_NUM_THREADS=1" in capsys.readouterr().err
