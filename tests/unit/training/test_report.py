import sys

import pytest

from doubles.hostile_texts import HOSTILE, obeyed
from nunatak_training.report import EpochResult, ProgressBar


def test_progress_bar_is_silent_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    bar = ProgressBar("toy")

    bar.started(num_steps=2, num_epochs=1)
    bar.stepped(loss=0.5)
    bar.evaluated(
        EpochResult(epoch=1, step=9, train_loss=0.5, dev_loss=0.4, dev_score=0.9, seconds=1.0)
    )
    bar.ended()

    assert capfd.readouterr() == ("", "")


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
