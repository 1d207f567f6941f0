"""Traffic control: the parts of this package together, as the service and the routes use them."""

import random
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.registry import Collector

from nunatak_registry import TaskManifest, Traffic
from nunatak_server.outputs.entities import Join
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.choice import Arm, Chosen, choose
from nunatak_server.rollouts.comparison import ShadowReport, pair_of
from nunatak_server.rollouts.metrics import TrafficMetrics
from nunatak_server.rollouts.shadows import CandidateValidation, ShadowRun, Shadows
from nunatak_server.scheduler.rows import PendingRow


class TrafficControl:
    """Chooses the version that answers and runs the shadows; belongs to the event loop thread."""

    def __init__(
        self,
        *,
        residency: Residency,
        join: Join,
        tolerance: float,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw = draw
        self._metrics = TrafficMetrics()
        self._validation = CandidateValidation(
            is_resident=residency.is_resident, preload=residency.preload, clock=clock
        )
        self._shadows = Shadows(
            residency=residency,
            validation=self._validation,
            metrics=self._metrics,
            join=join,
            tolerance=tolerance,
            clock=clock,
        )

    def choose(self, traffic: Traffic, *, routing_key: str | None) -> Chosen:
        """Choose for one request; the canary only once it has proven itself on this server."""
        return choose(
            traffic,
            routing_key=routing_key,
            draw=self._draw,
            may_answer=self._validation.is_validated,
        )

    def shadow(self, run: ShadowRun, answered: Sequence[PendingRow]) -> Sequence[PendingRow]:
        """Return the rows of a shadow, if it can run, for the batch of those it shadows."""
        return self._shadows.start(run, answered)

    def drop_shadow(self, answered: TaskManifest, shadow: TaskManifest, *, num_inputs: int) -> None:
        """Count inputs that a shadow cannot run on."""
        self._shadows.drop(answered, shadow, num_inputs=num_inputs)

    def observe_answer(self, task: str, arm: Arm, outcome: str) -> None:
        """Count one answer of a task whose alias is split."""
        self._metrics.observe_split(task, arm, outcome)

    def report(self, answered: TaskManifest, shadow: TaskManifest) -> ShadowReport:
        """Return how a shadow has done beside a version on this server."""
        return self._shadows.reports.report(pair_of(answered, shadow))

    def collectors(self) -> Iterator[Collector]:
        """Yield the metrics."""
        return self._metrics.collectors()

    async def aclose(self) -> None:
        """Let go of what runs in the background."""
        await self._validation.aclose()
        await self._shadows.aclose()
