"""Laws of the processes of a sweep that die at bad moments."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from doubles.sweeps import toy_folder, toy_runs
from nunatak_training.sweeps import Failed, Run
from nunatak_training.sweeps.workers import Worker


@pytest.fixture(name="run", scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    (run,) = toy_runs(toy_folder(tmp_path_factory.mktemp("sweep")))
    return run


@pytest.fixture(name="dying")
def make_dying() -> tuple[Worker, Connection]:
    """A worker whose process has ended, and the other end of its pipe."""
    process = get_context("spawn").Process(target=int)
    process.start()
    process.join()
    here, there = get_context("spawn").Pipe()
    return Worker(process=process, pipe=here), there


def test_worker_that_died_before_it_was_given_a_run_fails_it(
    dying: tuple[Worker, Connection], run: Run
) -> None:
    worker, other_end = dying
    other_end.close()

    record = worker.give(run)

    assert record is not None
    assert isinstance(record.outcome, Failed)
    assert record.outcome.code == "worker_died"


@pytest.mark.parametrize("read", [Connection.recv, Connection.fileno], ids=["read", "unread"])
def test_worker_that_died_with_a_run_fails_it(
    dying: tuple[Worker, Connection], run: Run, read: Callable[[Connection], object]
) -> None:
    worker, other_end = dying
    assert worker.give(run) is None
    read(other_end)
    other_end.close()  # with the run unread the pipe is reset and does not just end

    record = worker.answer(run)

    assert isinstance(record.outcome, Failed)
    assert record.outcome.code == "worker_died"
    assert record.run == run.description
