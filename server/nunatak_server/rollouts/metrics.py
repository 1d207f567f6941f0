"""Metrics of canaries and shadows. Labels are names of the registry, bounded in number."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from nunatak_server.rollouts.choice import Arm
from nunatak_server.rollouts.comparison import DRIFT_BOUNDS, Comparison
from nunatak_server.telemetry.metrics import MAX_TASK_LABELS, OTHER_TASK

AGREED: Final = "agreed"
DIFFERED: Final = "differed"
ERROR: Final = "error"
DROPPED: Final = "dropped"


class RolloutMetrics:
    """What is counted of split aliases; any thread may call it."""

    def __init__(self) -> None:
        self._tasks: set[str] = set()
        self._split = Counter(
            "nunatak_split_requests",
            "Answers of tasks whose alias has a canary, by who gave them",
            ["task", "arm", "outcome"],
            registry=None,
        )
        self._shadow = Counter(
            "nunatak_shadow_inputs",
            "Inputs a shadow was to run on, by what became of that",
            ["task", "outcome"],
            registry=None,
        )
        self._drift = Histogram(
            "nunatak_shadow_score_drift",
            "Largest absolute difference of a shadow's scores, by input",
            ["task"],
            buckets=DRIFT_BOUNDS,
            registry=None,
        )

    def collectors(self) -> Iterator[Collector]:
        """Yield what is to be rendered."""
        yield from (self._split, self._shadow, self._drift)

    def observe_answer(self, task: str, arm: Arm, outcome: str) -> None:
        """Count one answer of a task whose alias is split."""
        self._split.labels(self._label(task), arm.value, outcome).inc()

    def observe_comparison(self, task: str, comparison: Comparison) -> None:
        """Count one input that a shadow was compared on."""
        outcome = AGREED if comparison.agreement == 1.0 else DIFFERED
        label = self._label(task)
        self._shadow.labels(label, outcome).inc()
        self._drift.labels(label).observe(comparison.max_drift)

    def observe_errors(self, task: str, num_inputs: int) -> None:
        """Count inputs that a shadow failed on."""
        self._shadow.labels(self._label(task), ERROR).inc(num_inputs)

    def observe_dropped(self, task: str, num_inputs: int) -> None:
        """Count inputs that a shadow was not run on."""
        self._shadow.labels(self._label(task), DROPPED).inc(num_inputs)

    def _label(self, task: str) -> str:
        if task not in self._tasks and len(self._tasks) >= MAX_TASK_LABELS:
            return OTHER_TASK
        self._tasks.add(task)
        return task
