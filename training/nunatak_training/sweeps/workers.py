"""Several runs at a time, each in a process of its own.

A worker that dies takes one run with it, which becomes a failure, and is replaced. When the sweep
itself is killed its pipes close, and the workers leave after the run that they are at.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

import torch

from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.records import Failed, RunRecord
from nunatak_training.sweeps.running import Bench

_GONE = (EOFError, OSError)
"""The other end of a pipe has closed: with all read, or amid a message."""


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Does runs in this process, one after another."""

    bench: Bench

    def __call__(self, runs: Sequence[Run]) -> Iterator[RunRecord]:
        """Yield the records in the order of the runs."""
        yield from map(self.bench.run, runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcesses:
    """Does as many runs at once as there are jobs; the processor's threads are shared out."""

    jobs: int
    device: str = "cpu"

    def __call__(self, runs: Sequence[Run]) -> Iterator[RunRecord]:
        """Yield the records as they come."""
        pending = list(reversed(runs))
        threads = max(1, torch.get_num_threads() // self.jobs)
        with ExitStack() as stack:
            busy: dict[Connection, tuple[Worker, Run]] = {}
            idle: list[Worker] = []
            while pending or busy:
                while pending and len(busy) < self.jobs:
                    worker = idle.pop() if idle else self._start(stack, threads)
                    run = pending.pop()
                    died = worker.give(run)
                    if died is None:
                        busy[worker.pipe] = worker, run
                    else:
                        yield died
                for pipe in cast("list[Connection]", wait(list(busy))):
                    worker, run = busy.pop(pipe)
                    record = worker.answer(run)
                    if worker.process.is_alive():
                        idle.append(worker)
                    yield record

    def _start(self, stack: ExitStack, threads: int) -> "Worker":
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, self.device, threads))
        process.start()
        there.close()
        worker = Worker(process=process, pipe=here)
        stack.callback(worker.stop)
        return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process and the pipe to it."""

    process: SpawnProcess
    pipe: Connection

    def give(self, run: Run) -> RunRecord | None:
        """Hand over a run; return the record of the worker's death if it died before."""
        try:
            self.pipe.send(run)
        except _GONE:
            return self._died(run)
        return None

    def answer(self, run: Run) -> RunRecord:
        """Return the record of a run, or that of the worker's death."""
        try:
            return cast("RunRecord", self.pipe.recv())
        except _GONE:
            return self._died(run)

    def _died(self, run: Run) -> RunRecord:
        self.process.join()
        message = (
            f"the process of this run ended with exit code {self.process.exitcode}; a negative one "
            "is a signal, and 9 is mostly a lack of memory"
        )
        return RunRecord(
            run=run.description,
            outcome=Failed(code="worker_died", message=message),
            seconds=0.0,
            cpu_seconds=0.0,
            environment={},
        )

    def stop(self) -> None:
        """End the process, at once if it is at a run."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _work(pipe: Connection, device: str, threads: int) -> None:
    """Do runs until the pipe closes."""
    torch.set_num_threads(threads)
    bench = Bench(device=device)
    while True:
        try:
            run = cast("Run", pipe.recv())
        except _GONE:
            return
        record = bench.run(run)
        try:
            pipe.send(record)
        except _GONE:
            return
