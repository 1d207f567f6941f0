import sys

import pytest

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_training.report import EpochResult, ProgressBar


def told(label: str) -> None:
    bar = ProgressBar(label)
    bar.prepared(0, 2)
    bar.prepared(2, 2)
    bar.started(num_steps=4, num_epochs=2)
    for epoch in (1, 2):
        bar.stepped(loss=0.5)
        bar.stepped(loss=0.5)
        bar.evaluated(
            EpochResult(
                epoch=epoch, step=9, train_loss=0.5, dev_loss=0.4, dev_score=0.9, seconds=1.0
            )
        )
    bar.ended()


def test_where_there_is_no_terminal_each_scored_epoch_is_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told("toy")

    assert capfd.readouterr() == (
        "",
        "".join(
            f"toy: epoch {epoch} of 2: dev score 0.9000, dev loss 0.4000, train loss 0.5000\n"
            for epoch in (1, 2)
        ),
    )


def test_a_line_of_a_hostile_name_commands_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    told(HOSTILE)

    assert obeyed(capfd.readouterr().err) == set()


def test_a_bar_of_a_hostile_name_commands_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar = ProgressBar(HOSTILE)

    bar.started(num_steps=2, num_epochs=1)
    bar.ended()

    printed = capsys.readouterr().err
    assert "evil[b]" in printed
    # The bar's own commands move the cursor to the start of the line, and up if there are several
    # bars.
    assert obeyed(printed.replace("\r", "").replace("\x1b[A", "")) == set()
