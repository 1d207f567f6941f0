"""Metrics of canaries and shadows. Labels are task names of the registry, bounded in number."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from nunatak_server.rollouts.choice import Arm
from nunatak_server.rollouts.comparison import DRIFT_BOUNDS, Comparison
from nunatak_server.telemetry.metrics import LabelValues

AGREED: Final = "agreed"
DIFFERED: Final = "differed"
ERROR: Final = "error"
DROPPED: Final = "dropped"


class RolloutMetrics:
    """Counts answers of aliases with a canary, and shadow inputs; any thread may call it."""

    def __init__(self) -> None:
        self._tasks = LabelValues()
        self._split = Counter(
            "nunatak_split_requests",
            "Answers of tasks whose alias has a canary, by the version that answered",
            ["task", "arm", "outcome"],
            registry=None,
        )
        self._shadow = Counter(
            "nunatak_shadow_inputs",
            "Inputs of a shadow, by outcome",
            ["task", "outcome"],
            registry=None,
        )
        self._drift = Histogram(
            "nunatak_shadow_score_drift",
            "Largest absolute difference of the scores of a shadow, by input",
            ["task"],
            buckets=DRIFT_BOUNDS,
            registry=None,
        )

    def collectors(self) -> Iterator[Collector]:
        yield from (self._split, self._shadow, self._drift)

    def observe_answer(self, task: str, arm: Arm, outcome: str) -> None:
        self._split.labels(self._tasks.of(task), arm.value, outcome).inc()

    def observe_comparison(self, task: str, comparison: Comparison) -> None:
        outcome = AGREED if comparison.agreement == 1.0 else DIFFERED
        label = self._tasks.of(task)
        self._shadow.labels(label, outcome).inc()
        self._drift.labels(label).observe(comparison.max_drift)

    def observe_errors(self, task: str, num_inputs: int) -> None:
        self._shadow.labels(self._tasks.of(task), ERROR).inc(num_inputs)

    def observe_dropped(self, task: str, num_inputs: int) -> None:
        self._shadow.labels(self._tasks.of(task), DROPPED).inc(num_inputs)
