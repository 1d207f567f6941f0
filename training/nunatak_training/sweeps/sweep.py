"""A sweep: the runs that have no result yet, one after another or several at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.records import RunRecord
from nunatak_training.sweeps.results import ResultsFolder

Runner = Callable[[Sequence[Run]], Iterator[RunRecord]]
"""Does runs, in any order, and gives each record as soon as it is there."""


class SweepReport(Protocol):
    """Is told how a sweep goes."""

    def started(self, *, num_runs: int, num_done: int) -> None:
        """The runs are known, and how many of them have a result from before."""
        ...

    def finished(self, record: RunRecord) -> None:
        """One run has a result, which is kept."""
        ...

    def ended(self) -> None:
        """The sweep is over, with or without success."""
        ...


def run_sweep(
    runs: Sequence[Run], results: ResultsFolder, runner: Runner, report: SweepReport
) -> tuple[RunRecord, ...]:
    """Do the runs that have no result yet, and return the results of all, in the order of `runs`.

    Every result is kept before the next one is looked at, so a sweep that was killed goes on where
    it was.

    Raises:
        SweepRunningError: another sweep writes to the folder.
        CorruptResultError: the folder holds what no sweep wrote.
    """
    with results.held():
        found = {record.run.digest: record for record in results.records()}
        pending = [run for run in runs if run.description.digest not in found]
        report.started(num_runs=len(runs), num_done=len(runs) - len(pending))
        try:
            for record in _kept(runner(pending), results):
                found[record.run.digest] = record
                report.finished(record)
        finally:
            report.ended()
    return tuple(found[run.description.digest] for run in runs)


def _kept(records: Iterable[RunRecord], results: ResultsFolder) -> Iterator[RunRecord]:
    for record in records:
        results.add(record)
        yield record
