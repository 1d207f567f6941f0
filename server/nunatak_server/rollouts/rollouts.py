"""`Rollouts`: the canaries and shadows of one server."""

import random
import time
from collections.abc import Callable

from nunatak_registry import Traffic
from nunatak_server.residency.residency import Residency
from nunatak_server.rollouts.choice import CandidateValidation, Chosen, choose
from nunatak_server.rollouts.metrics import RolloutMetrics
from nunatak_server.rollouts.shadows import Shadows
from nunatak_server.turns import Turns


class Rollouts:
    """Chooses the answering version; owns the shadows, their reports and the metrics.

    Only the event loop thread may use it.
    """

    def __init__(
        self,
        *,
        residency: Residency,
        tolerance: float,
        turns: Turns,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tolerance` is the largest difference of regression values that counts as agreement."""
        self.metrics = RolloutMetrics()
        self._draw = draw
        self._validation = CandidateValidation(
            is_resident=residency.is_resident, preload=residency.preload, clock=clock
        )
        self.shadows = Shadows(
            residency=residency,
            validation=self._validation,
            metrics=self.metrics,
            tolerance=tolerance,
            turns=turns,
            clock=clock,
        )

    def choose(self, traffic: Traffic, *, routing_key: str | None) -> Chosen:
        return choose(
            traffic,
            routing_key=routing_key,
            draw=self._draw,
            may_answer=self._validation.is_validated,
        )

    async def aclose(self) -> None:
        await self._validation.aclose()
        await self.shadows.aclose()
