"""Training runs that die: a report that ends them, and a checkpoint that misses no step."""

from pathlib import Path

from doubles.examples import RecordingReport
from nunatak_training.loop.checkpoint import SavedRun


class Killed(Exception):  # noqa: N818 - stands for a signal, which is no Exception
    pass


class Mortal(RecordingReport):
    """Ends the run within the report of a step, like a signal at that point."""

    def __init__(self, *, dies_at: int) -> None:
        super().__init__()
        self._dies_at = dies_at

    def stepped(self, *, loss: float) -> None:
        super().stepped(loss=loss)
        if self.num_resumed + len(self.losses) == self._dies_at:
            raise Killed


class EveryTime(SavedRun):
    """A checkpoint that is always due, and so holds the last point of the loop."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, interval=0.0, clock=lambda: 0.0)
