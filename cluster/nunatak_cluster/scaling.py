"""Scaling: the number of replicas follows from the seconds of work in their queues.

Ray copies this module into its controller, so the module imports nothing of Nunatak.
"""

from math import ceil
from typing import Any, Final

QUEUED_SECONDS: Final = "nunatak_queued_seconds"
"""The name of the figure that each replica reports."""
LARGEST_FACTOR: Final = 2.0
"""Largest growth by one decision: a burst must not fill the cluster."""
IDLE_SHARE: Final = 0.1
"""Share of the target below which one replica is too many. Queues are short until a replica is
nearly busy, so a queue somewhat below the target is no reason to have fewer replicas."""


class QueuedSeconds:
    """Ray's policy: more replicas while their queues are longer than `target_s` in the mean."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:  # noqa: ANN401 - Ray's context
        """Return the wanted number of replicas. Ray applies its bounds and delays to it."""
        metrics: dict[str, dict[Any, float]] = context.aggregated_metrics or {}
        reported = metrics.get(QUEUED_SECONDS, {})
        return wanted_replicas(
            current=context.target_num_replicas,
            queued_s=list(reported.values()),
            target_s=self._target_s,
        ), {}


def wanted_replicas(*, current: int, queued_s: list[float], target_s: float) -> int:
    """Return the wanted number of replicas; the current one before any report."""
    if not queued_s:
        return current
    share = sum(queued_s) / len(queued_s) / target_s
    if share > 1:
        return ceil(current * min(share, LARGEST_FACTOR))
    return current - 1 if share < IDLE_SHARE and current > 1 else current
