"""Laws of the progress that long work shows on standard error."""

import json
import os
import pty
import subprocess
import sys

import pytest

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_contract.methods import TopK
from nunatak_contract.progress import Progress, Work, shown_progress
from nunatak_training.report import EpochResult, Report

PROGRAM = """
from nunatak_contract.progress import Work, shown_progress
with shown_progress() as progress:
    progress.begin(Work("toy", total=2))
    for number in (1, 2):
        progress.step(f"told {number}")
        print(f"result {number}", flush=True)
    raise SystemExit
"""
HIDDEN_CURSOR, SHOWN_CURSOR = "\x1b[?25l", "\x1b[?25h"
OF_A_BAR = (HIDDEN_CURSOR, SHOWN_CURSOR, "\x1b[2K", "\x1b[1A", "\r")
SCORES = "dev score 0.9000, dev loss 0.4000, train loss 0.5000"


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="clock")
def make_clock() -> Clock:
    return Clock()


Captured = pytest.CaptureFixture[str]


def work_of_ten(progress: Progress, clock: Clock, *, seconds: float) -> None:
    progress.begin(Work("toy", total=10))
    for _ in range(10):
        clock.now += seconds
        progress.advance()


def test_without_a_terminal_each_thing_told_is_one_line_with_rate_and_time_left(
    capfd: Captured,
) -> None:
    clock, name = Clock(), "toy, topk, 3 layers"
    with shown_progress(clock=clock) as progress:
        report = Report("toy", progress)
        report.tried(TopK(num_layers=3))
        report.prepared(0, 2)
        report.prepared(2, 2)
        report.started(num_steps=8, num_epochs=2)
        report.resumed(num_steps=4)
        clock.now += 4.0
        report.stepped(loss=0.5)
        report.stepped(loss=0.5)
        report.evaluated(
            EpochResult(epoch=1, step=6, train_loss=0.5, dev_loss=0.4, dev_score=0.9, seconds=1.0)
        )

    assert capfd.readouterr().err.splitlines() == [
        f"{name}: continues from the last checkpoint (4 of 8 steps)",
        f"{name}: epoch 1 of 2: {SCORES} (6 of 8 steps, 2.0 s/step, 0:00:04 left)",
    ]


def test_work_of_many_units_has_a_line_after_ten_silent_seconds(
    capfd: Captured, clock: Clock
) -> None:
    with shown_progress(clock=clock) as progress:
        progress.begin(Work("toy", total=1000))
        for _ in range(12):
            clock.now += 1.0
            progress.advance()

    assert capfd.readouterr().err == "toy: 10 of 1,000 steps, 1 step/s, 0:16:30 left\n"


@pytest.mark.parametrize(("seconds", "num_lines"), [(0.5, 0), (6.0, 5), (60.0, 10)])
def test_work_that_tells_nothing_has_a_line_at_a_tenth_after_ten_silent_seconds(
    clock: Clock, capfd: Captured, seconds: float, num_lines: int
) -> None:
    with shown_progress(clock=clock) as progress:
        work_of_ten(progress, clock, seconds=seconds)

    assert capfd.readouterr().err.count("\n") == num_lines


def test_the_remaining_time_follows_the_share_that_this_process_did(
    clock: Clock, capfd: Captured
) -> None:
    with shown_progress(clock=clock) as progress:
        progress.begin(Work("rows", unit="row", done=1000, share=0.2))
        clock.now = 5.0
        progress.advance(1000, share=0.3)
        progress.tell("half")

    assert capfd.readouterr().err == "rows: half (2,000 rows, 200 rows/s, 0:00:35 left)\n"


def test_events_are_json_documents_and_come_at_most_once_a_second_between_steps(
    clock: Clock, capfd: Captured
) -> None:
    with shown_progress(as_json=True, clock=clock) as progress:
        work_of_ten(progress, clock, seconds=0.5)
        progress.tell(HOSTILE, score=0.5)

    out, err = capfd.readouterr()
    events = [json.loads(line) for line in err.splitlines()]
    assert (out, obeyed(err)) == ("", set())
    assert [it["event"] for it in events] == ["begin", *["progress"] * 5, "step", "end"]
    assert events[1].items() >= {"work": "toy", "unit": "step", "done": 2, "total": 10}.items()
    assert (events[1]["per_s"], events[1]["left_s"]) == (2.0, 4.0)
    assert (events[-2]["text"], events[-2]["score"]) == (HOSTILE, 0.5)


def test_quiet_work_shows_nothing(clock: Clock, capfd: Captured) -> None:
    with shown_progress(quiet=True, as_json=True, clock=clock) as progress:
        work_of_ten(progress, clock, seconds=60.0)
        progress.step("done")

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("place", ["pipe", "terminal"])
def test_hostile_names_command_no_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: place == "terminal")
    with shown_progress() as progress:
        progress.begin(Work(HOSTILE, total=2))
        progress.step(HOSTILE)
        progress.advance(note=HOSTILE)

    printed = capsys.readouterr().err
    for command in OF_A_BAR:
        printed = printed.replace(command, "")
    assert "evil[b]" in printed
    assert obeyed(printed, has_styles=True) == set()


def test_on_a_terminal_a_bar_shows_the_work_and_results_still_go_to_standard_output() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    ran = subprocess.run(  # noqa: S603 - our own program; no shell
        [sys.executable, "-c", PROGRAM],
        env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = os.read(ours, 1 << 20).decode()
    os.close(ours)

    assert ran.stdout == "result 1\nresult 2\n"
    assert "2 of 2 steps" in seen
    assert "toy: told 1" in seen
    assert "result" not in seen
    assert seen.rindex(SHOWN_CURSOR) > seen.rindex(HIDDEN_CURSOR)
