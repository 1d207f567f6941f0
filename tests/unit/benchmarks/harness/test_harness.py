"""Laws of the harness: open loops, plots, records and rounds."""

import asyncio
import math
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.harness import open_loop
from benchmarks.harness.open_loop import Planned, drive_closed, drive_open, percentile, plan
from benchmarks.harness.recording import Sheet, figures_parser, latest, meets
from benchmarks.harness.rounds import (
    DisagreementError,
    System,
    fastest,
    interleave,
    race,
    ratios,
    require_one_thread,
)
from benchmarks.harness.sets import read_part
from benchmarks.render_figures import overview
from benchmarks.savings.systems import cores_of
from nunatak_client import ConnectionFailedError
from nunatak_loadtest.scenarios import Scenario

SCENARIO = Scenario(name="x")


class Blocking:
    """A client that keeps the whole loop busy for its answers, and knows nobody but `tone`."""

    def __init__(self, busy_s: float) -> None:
        self._busy_s = busy_s
        self.asked = list[str]()

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        self.asked.append(text)
        end_s = time.monotonic() + self._busy_s
        while time.monotonic() < end_s:
            pass
        if tuple(tasks) != ("tone",):
            raise ConnectionFailedError("nobody there")


def system(name: str, logits: Sequence[float], *, tolerance: float = 1e-3) -> System:
    answer = torch.tensor(logits).unsqueeze(1)
    return System(name=name, answer=lambda: answer, seconds=lambda: 1.0, tolerance=tolerance)


def test_a_late_request_counts_from_its_due_time() -> None:
    planned = [Planned(due_s=0.0, tasks=("tone",), text=str(it)) for it in range(3)]

    samples = asyncio.run(drive_open(Blocking(busy_s=0.02), planned))

    assert [it.response_ms > 20 * number for number, it in enumerate(samples, 1)] == [True] * 3
    assert samples[2].lag_ms > 20
    assert samples[0].started_s == pytest.approx(samples[2].started_s)


def test_samples_are_in_the_order_of_the_plan_with_their_failures() -> None:
    planned = [Planned(due_s=it / 100, tasks=(name,), text=name) for it, name in enumerate("ab")]
    planned.insert(1, Planned(due_s=0.005, tasks=("tone",), text="tone"))
    client = Blocking(busy_s=0)

    samples = asyncio.run(drive_open(client, planned))

    assert client.asked == ["a", "tone", "b"]
    assert [it.error for it in samples] == ["connection_failed", None, "connection_failed"]


def test_users_of_a_closed_loop_ask_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        """A client that takes a second of the test's clock for an answer."""

        now_s = num_waiting = 0

        async def ask(self, tasks: Sequence[str], text: str) -> None:
            assert (tuple(tasks), text) == (("tone",), "x")
            self.num_waiting += 1
            assert self.num_waiting <= 2
            await asyncio.sleep(0)
            self.now_s += 1
            self.num_waiting -= 1

    client = Slow()
    monkeypatch.setattr(open_loop, "time", SimpleNamespace(monotonic=lambda: client.now_s))

    samples = asyncio.run(drive_closed(client, lambda: (("tone",), "x"), users=2, seconds=10))

    assert len(samples) in {10, 11}
    assert max(it.started_s for it in samples) == 9


def test_a_plan_is_a_function_of_its_seed_and_ends_in_time() -> None:
    first, same, other = (
        plan(SCENARIO, ["tone"], rate_per_s=100, seconds=2, seed=seed) for seed in (1, 1, 2)
    )

    assert first == same != other
    assert 150 < len(first) < 250
    assert first[0].due_s > 0
    assert first[-1].due_s < 2


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_percentile_is_a_measured_value(percent: float, value: float) -> None:
    assert percentile([4, 2, 1, 3], percent) == value


def test_no_sample_gives_no_figure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="measure for longer"):
        percentile([], 99)
    with pytest.raises(ValueError, match=r"short\.load: .* measure for longer"):
        Sheet(command="", file=tmp_path / "figures.jsonl").record("short.load", [], unit="ms")


def test_figures_of_a_device_have_a_section_and_others_are_refused(tmp_path: Path) -> None:
    sheet = Sheet(command="c", file=tmp_path / "figures.jsonl")
    sheet.record("gpu.forward.fanout64", [1.0], unit="of")
    assert "gpu.forward.fanout64" in overview(latest(sheet.file))

    sheet.record("lost.figure", [1.0], unit="of")
    with pytest.raises(ValueError, match=r"lost\.figure"):
        overview(latest(sheet.file))


def test_a_figure_is_the_median_with_first_and_last_decile(tmp_path: Path) -> None:
    samples = [float(number) for number in range(11)]

    figure = Sheet(command="c", file=tmp_path / "figures.jsonl").record("a.b", samples, unit="ms")

    assert (figure.low, figure.value, figure.high, figure.runs) == (1.0, 5.0, 9.0, 11)


def test_the_newest_figure_of_an_identifier_counts(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    for value in (1.0, 2.0):
        Sheet(command="c", file=file).record("a.b", [value], unit="ms", goal="<= 1.5")

    assert latest(file)["a.b"].value == 2.0
    assert latest(file)["a.b"].met is False


@pytest.mark.parametrize(
    ("value", "goal", "met"), [(2.7, ">= 2.7", True), (2.69, ">= 2.7", False), (1.0, "<= 1", True)]
)
def test_a_goal_holds_at_its_bound(value: float, goal: str, *, met: bool) -> None:
    assert meets(value, goal) is met


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


def test_what_measures_nothing_is_refused_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = figures_parser("", rounds=3, parts=["fast", "odd"], data=True)

    assert parser.parse_args(["--data", str(tmp_path)]).parts == ["fast", "odd"]
    for arguments, problem in (
        (["fast", "slow"], "argument fast|odd: expected one of fast, odd, got 'slow'"),
        (["--rounds", "0"], "argument --rounds: expected 1 or more, got '0'"),
        (["--data", "gone"], "argument --data: expected a file or folder that exists, got 'gone'"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(arguments)
        assert problem in capsys.readouterr().err
    with pytest.raises(SystemExit, match="expected numbers such as 0,1, or `any`, got '0-1'"):
        cores_of("0-1")
    with pytest.raises(SystemExit, match=r"train\.jsonl\.gz: no such file; docs/training\.md"):
        read_part(tmp_path, "train")


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
