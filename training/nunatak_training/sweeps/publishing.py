"""The best run of a sweep becomes a task version.

Runs keep no weights. The best run is trained again with the same recipe, seed and examples, which
gives the same weights on the same machine with the same number of threads.
"""

from collections.abc import Sequence
from dataclasses import replace

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import check_task_name
from nunatak_registry import Registry
from nunatak_training.recipes import changed_recipe
from nunatak_training.sweeps.planning import describe
from nunatak_training.sweeps.results import Finished, RunRecord
from nunatak_training.sweeps.running import RunContext
from nunatak_training.train import TrainOutcome, run


def best_run(records: Sequence[RunRecord], *, task: str | None = None) -> RunRecord:
    """The finished run with the best dev score, and then the fewest own parameters.

    Without `task`, the sweep must have one task.
    """
    tasks = sorted({record.run.task for record in records})
    if task is None and len(tasks) == 1:
        (task,) = tasks
    if task not in tasks:
        found = "" if task is None else f", got {task!r}"
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
) -> TrainOutcome:
    """Train a run again and publish it; `calibrate` its scores, also if the sweep's were not."""
    check_task_name(task)
    if best.origin is None or not isinstance(best.outcome, Finished):
        raise _refused("the result is from an earlier release; run the sweep again")
    source, recipe = best.origin.source, best.run.recipe
    backbone, cut = context.backbone(best.origin.backbone), context.data(source)
    found = describe(best.run.sweep, best.run.task, source, cut, recipe, backbone)
    if found.digest != best.run.digest:
        raise _refused(
            f"the examples in {source.data} or the backbone {best.origin.backbone} have "
            "changed since the sweep; run the sweep again"
        )
    return run(
        replace(cut.data, test=cut.test),
        task,
        changed_recipe(recipe, {"calibrate": calibrate or recipe.calibrate}),
        registry,
        backbone=backbone,
        trunks=context.trunks,
        note=note,
    )


def _refused(problem: str) -> NunatakError:
    return NunatakError("invalid_sweep", where="sweep publish", problem=problem)
