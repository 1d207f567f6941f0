"""The best run of a sweep becomes a task version.

Runs keep no weights. The best run is trained again with the same recipe, seed and examples, which
gives the same weights on the same machine with the same number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import check_task_name
from nunatak_registry import Registry
from nunatak_training.publishing import check_publishable, publish
from nunatak_training.recipes import changed_recipe
from nunatak_training.sweeps.planning import Run, describe
from nunatak_training.sweeps.results import Finished, RunRecord
from nunatak_training.sweeps.running import RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBest:
    """The version of the best run, and what both trainings scored on the dev examples."""

    manifest: TaskManifest
    metric: str
    sweep_score: float
    score: float
    """Of the published weights."""


def best_run(records: Sequence[RunRecord], *, task: str | None = None) -> RunRecord:
    """Return the finished run with the best score on the dev examples, never on test examples.

    Among equal scores, the run with the fewest own parameters wins, and then the first in order.

    Args:
        records: the results of a sweep.
        task: the task of the sweep; absent: its only one.

    Raises:
        NunatakError: `invalid_sweep`, no such run has finished, or the runs cannot be compared.
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
    best, _ = min(finished, key=lambda it: (-_dev_score(it[1]), it[1].num_parameters))
    return best


def publish_best(
    best: RunRecord,
    registry: Registry,
    context: RunContext,
    *,
    task: str,
    note: str = "",
    calibrate: bool = False,
) -> PublishedBest:
    """Train a run of a sweep again, and publish it as the next version of a task.

    With `calibrate`, the scores of the version are calibrated, also if the sweep's were not.

    Raises:
        NunatakError: `invalid_sweep`, the result names no places, or the examples or the backbone
            have changed since the sweep.
    """
    check_task_name(task)
    if best.origin is None or not isinstance(best.outcome, Finished):
        raise _refused("the result is from an earlier release; run the sweep again")
    run = Run(description=best.run, origin=best.origin)
    backbone, cut = context.backbone(run.origin.backbone), context.data(run.origin.source)
    recipe = run.description.recipe
    found = describe(best.run.sweep, best.run.task, run.origin.source, cut, recipe, backbone)
    if found.digest != best.run.digest:
        raise _refused(
            f"the examples in {run.origin.source.data} or the backbone {run.origin.backbone} have "
            "changed since the sweep; run the sweep again"
        )
    if calibrate:
        recipe = changed_recipe(recipe, {"calibrate": True})
        run = replace(run, description=run.description.model_copy(update={"recipe": recipe}))
    check_publishable(cut.data, recipe, backbone, note=note)
    trained = context.fit(run)
    if cut.test is not None:
        trained = replace(trained, data=replace(trained.data, test=cut.test))
    manifest = publish(
        trained.tested(backbone),
        registry,
        backbone,
        task=task,
        created_at=datetime.now(UTC),
        note=note,
    )
    metric, score = next(iter(trained.scores.items()))
    return PublishedBest(
        manifest=manifest,
        metric=metric.value,
        sweep_score=_dev_score(best.outcome),
        score=score,
    )


def _dev_score(outcome: Finished) -> float:
    return outcome.scores[outcome.metric]


def _refused(problem: str) -> NunatakError:
    return NunatakError("invalid_sweep", where="sweep publish", problem=problem)
