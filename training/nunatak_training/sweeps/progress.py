"""How a sweep goes, on standard error: a bar for people, a line a run for logs."""

import sys
from typing import NoReturn

from tqdm import tqdm

from nunatak_registry.plain_text import visible
from nunatak_training.sweeps.records import Finished, RunRecord
from nunatak_training.sweeps.wording import run_text


class SweepProgress:
    """A bar over the runs, with a line for each."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: tqdm[NoReturn] | None = None

    def started(self, *, num_runs: int, num_done: int) -> None:
        """Show the bar where it goes on."""
        self._bar = tqdm(
            total=num_runs,
            initial=num_done,
            desc=visible(self._label),
            unit="run",
            disable=not sys.stderr.isatty(),
        )
        self._bar.write(f"{num_runs} runs, {num_done} of them done before", file=sys.stderr)

    def finished(self, record: RunRecord) -> None:
        """Advance the bar, and say what came of the run."""
        if self._bar is None:
            return
        self._bar.update()
        line = visible(f"{run_text(record.run)}: {_outcome(record)}")
        self._bar.write(line, file=sys.stderr)

    def ended(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _outcome(record: RunRecord) -> str:
    took = f"{record.seconds:.0f} s, {record.cpu_seconds:.0f} s of processor"
    match record.outcome:
        case Finished() as found:
            return f"{found.metric} {found.score:.4f} ({took})"
        case failed:
            return f"failed [{failed.code}]: {failed.message} ({took})"
