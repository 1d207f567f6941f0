"""Metrics of the queue, read from admission itself whenever metrics are rendered."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nunatak_server.admission import Admission


class QueueCollector(Collector):
    """Turns what is admitted and not answered yet into metrics."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics of the queue, as of now."""
        gauges = (
            ("queued_requests", "Requests that are not answered yet", self._admission.num_requests),
            ("queued_tokens", "Tokens of their rows, all layers", self._admission.num_tokens),
            ("held_body_bytes", "Bytes of the bodies of requests", self._admission.num_bytes),
        )
        for name, documentation, value in gauges:
            yield GaugeMetricFamily(f"nunatak_{name}", documentation, value=value)
