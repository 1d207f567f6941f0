import pytest

from nunatak_training import EpochResult, ProgressBar


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
