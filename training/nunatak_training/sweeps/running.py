"""Running a sweep: the runs without a result, one after another or several at a time.

If a worker process dies, its run counts as failed, and another worker replaces the process. If the
sweep itself is killed, its workers end at once.

Runs keep no weights. To publish the best run, it is trained again with the same recipe, seed and
examples, which gives the same weights on the same machine with the same number of threads.
"""

import hashlib
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import cast

import torch
from safetensors.torch import save

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import check_task_name
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import Progress, Work
from nunatak_model import count_parameters, load_backbone
from nunatak_registry import Registry
from nunatak_training.data import TaskData, load_task_data
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.loop.checkpoint import run_checkpoint
from nunatak_training.recipes import changed_recipe
from nunatak_training.report import Report
from nunatak_training.sweeps.planning import Run, cut_data, describe
from nunatak_training.sweeps.reporting import run_text
from nunatak_training.sweeps.results import (
    EpochRecord,
    Failed,
    Finished,
    ResultsFolder,
    RunRecord,
    Source,
)
from nunatak_training.train import TrainOutcome, run
from nunatak_training.trunk import DiskTrunkStore

LOADED_SOURCES = 2
_GONE = (EOFError, OSError)
"""Errors of a pipe whose other end has closed."""
Runner = Callable[[Sequence[Run]], Iterator[RunRecord]]
"""Does runs in any order, and yields each record as soon as it is complete."""


class RunContext:
    """Resources that runs share: the last loaded backbone and data, and trunk states."""

    def __init__(self, *, device: str = "cpu", checkpoints: Path | None = None) -> None:
        """`checkpoints` is a folder from which killed runs go on; None: they begin anew."""
        self.device = device
        self._checkpoints = checkpoints
        self.backbone = lru_cache(maxsize=1)(partial(load_backbone, device=device))
        self.data = lru_cache(maxsize=LOADED_SOURCES)(_load_data)
        self.trunks = DiskTrunkStore()

    def run(self, run: Run) -> RunRecord:
        """An error of the run becomes its outcome; an error of the program is raised."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            trained = self.fit(run).tested(self.backbone(run.origin.backbone))
            outcome: Finished | Failed = _finished(trained)
        except NunatakError as error:
            outcome = Failed(code=error.code, message=str(error))
        return RunRecord(
            run=run.description,
            outcome=outcome,
            seconds=round(time.perf_counter() - wall, 3),
            cpu_seconds=round(time.process_time() - cpu, 3),
            environment={
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "device": self.device,
                "node": platform.node(),
                "threads": torch.get_num_threads(),
            },
            origin=run.origin,
        )

    def fit(self, run: Run) -> TrainedTask:
        backbone, data = self.backbone(run.origin.backbone), self.data(run.origin.source)
        recipe = run.description.recipe
        with run_checkpoint({data.name: data}, recipe, backbone, self._checkpoints) as checkpoint:
            return fit_task(
                data, recipe, backbone, report=Report(), trunks=self.trunks, checkpoint=checkpoint
            )


def _load_data(source: Source) -> TaskData:
    data = load_task_data(source.data, kind=source.kind, dev=source.dev, spelt=source.spelt)
    return cut_data(data, source.cut)


def _finished(trained: TrainedTask) -> Finished:
    dev, test = (
        {it.name: it.value for it in scores.values()}
        for scores in (trained.scores, {} if trained.test is None else trained.test.values)
    )
    tensors = {
        name: it.detach().cpu().contiguous() for name, it in sorted(trained.parameters.items())
    }
    return Finished(
        metric=next(iter(dev)),
        scores=dev,
        test_scores=test,
        num_parameters=count_parameters(trained.parameters),
        weights_digest=hashlib.sha256(save(tensors)).hexdigest(),
        best_epoch=trained.best_epoch,
        epochs=tuple(
            EpochRecord.model_validate(it, from_attributes=True) for it in trained.history
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcesses:
    """Does `jobs` runs at once, and divides the CPU's threads between them."""

    jobs: int
    device: str = "cpu"

    def __call__(self, runs: Sequence[Run]) -> Iterator[RunRecord]:
        """Yield the records in the order of completion."""
        pending = list(reversed(runs))
        threads = max(1, torch.get_num_threads() // self.jobs)
        with ExitStack() as stack:
            busy: dict[Connection, tuple[Worker, Run]] = {}
            idle: list[Worker] = []
            while pending or busy:
                while pending and len(busy) < self.jobs:
                    worker = idle.pop() if idle else self._start(stack, threads)
                    run = pending.pop()
                    with suppress(*_GONE):  # The answer of a process that has died says so.
                        worker.pipe.send(run)
                    busy[worker.pipe] = worker, run
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
    process: SpawnProcess
    pipe: Connection

    def answer(self, run: Run) -> RunRecord:
        """Return the record of a run, or one of failure if the process has died."""
        try:
            return cast("RunRecord", self.pipe.recv())
        except _GONE:
            self.process.join()
            message = (
                f"the process of this run ended with exit code {self.process.exitcode}; a negative "
                "code is a signal, and -9 usually means a lack of memory"
            )
            return dead_run(run, message)

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _work(pipe: Connection, device: str, threads: int) -> None:
    # Ctrl-C reaches all processes. The sweep stops its workers, and a killed sweep no longer can.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    context = RunContext(device=device)
    while True:
        try:
            run = cast("Run", pipe.recv())
        except _GONE:
            return
        record = context.run(run)
        try:
            pipe.send(record)
        except _GONE:
            return


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
    os._exit(1)


def dead_run(run: Run, message: str) -> RunRecord:
    return RunRecord(
        run=run.description,
        outcome=Failed(code="worker_died", message=message),
        seconds=0.0,
        cpu_seconds=0.0,
        environment={},
        origin=run.origin,
    )


def run_sweep(
    runs: Sequence[Run],
    results: ResultsFolder,
    runner: Runner,
    progress: Progress,
    *,
    retries_failed: bool = False,
) -> tuple[RunRecord, ...]:
    """Do the runs without a result; return the results of all, in the order of `runs`.

    Every result is stored at once, so a killed sweep continues after its last result.
    """
    with results.held():
        if retries_failed:
            results.drop_failures()
        found = {record.run.digest: record for record in results.records()}
        for run in runs:
            record = found.get(run.description.digest)
            if record is not None and (record.run, record.origin) != (run.description, run.origin):
                # The names of tasks and the places of files may change, and the result stays.
                now = {"run": run.description, "origin": run.origin}
                found[record.run.digest] = record.model_copy(update=now)
                results.add(found[record.run.digest])
        pending = [run for run in runs if run.description.digest not in found]
        work = Work("sweep", unit="run", total=len(runs), done=len(runs) - len(pending))
        progress.tell(f"{counted(work.total or 0, 'run')}, {work.done} of them done before")
        progress.begin(work)
        for record in runner(pending):
            results.add(record)
            found[record.run.digest] = record
            progress.step(f"{run_text(record.run)}: {_outcome(record)}", run=record.run.digest)
        progress.end()
    return tuple(found[run.description.digest] for run in runs)


def _outcome(record: RunRecord) -> str:
    took = f"{record.seconds:.0f} s, {record.cpu_seconds:.0f} s of CPU time"
    match record.outcome:
        case Finished() as found:
            return f"{found.metric} {found.score:.4f} ({took})"
        case failed:
            return f"failed [{failed.code}]: {failed.message} ({took})"


def best_run(records: Sequence[RunRecord], *, task: str | None = None) -> RunRecord:
    """The finished run with the best dev score, and then the fewest own parameters.

    Without `task`, the sweep must have one task.
    """
    tasks = sorted({record.run.task for record in records})
    if task is None and len(tasks) == 1:
        (task,) = tasks
    if task not in tasks:
        found = "; `of` names one" if task is None else f", got {task!r}"
        raise _refused(f"expected one of the tasks {', '.join(tasks) or '(none)'}{found}")
    finished = [
        (record, outcome)
        for record in records
        if record.run.task == task and isinstance(outcome := record.outcome, Finished)
    ]
    if not finished:
        raise _refused(f"no run of task {task!r} has finished")
    grounds = {(it.metric, record.run.data.dev_digest) for record, it in finished}
    if len(grounds) > 1:
        raise _refused(
            f"the runs of task {task!r} were scored by several metrics or on several dev sets, so "
            "their scores cannot be compared; sweep with one metric and one dev set"
        )
    best, _ = min(finished, key=lambda it: (-it[1].scores[it[1].metric], it[1].num_parameters))
    return best


def publish_best(
    best: RunRecord,
    registry: Registry,
    context: RunContext,
    *,
    task: str,
    note: str = "",
    calibrate: bool = False,
    report: Report | None = None,
) -> TrainOutcome:
    """Train a run again and publish it; `calibrate` its scores, also if the sweep's were not."""
    check_task_name(task)
    if best.origin is None or not isinstance(best.outcome, Finished):
        raise _refused("the result is from an earlier release; run the sweep again")
    source, recipe = best.origin.source, best.run.recipe
    backbone, data = context.backbone(best.origin.backbone), context.data(source)
    found = describe(best.run.sweep, best.run.task, source, data, recipe, backbone)
    if found.digest != best.run.digest:
        raise _refused(
            f"the examples in {source.data} or the backbone {best.origin.backbone} have "
            "changed since the sweep; run the sweep again"
        )
    return run(
        data,
        task,
        changed_recipe(recipe, {"calibrate": calibrate or recipe.calibrate}),
        registry,
        backbone=backbone,
        trunks=context.trunks,
        note=note,
        report=report,
    )


def _refused(problem: str) -> NunatakError:
    return NunatakError("invalid_sweep", where="sweep publish", problem=problem)
