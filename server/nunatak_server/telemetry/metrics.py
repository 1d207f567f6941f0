"""Metrics in the Prometheus text format.

Labels are bounded: task names come from the registry and never from a request, callers are names of
keys, routes are templates, and outcomes are error codes. Any thread may call the methods.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nunatak_contract.enums import OnLong
from nunatak_model import TrunkCacheStats
from nunatak_server.engine.outcomes import BatchReport
from nunatak_server.telemetry.memory import ServerState, StateCollector
from nunatak_server.telemetry.records import OK, PredictionRecord

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_VALUES: Final = 1000
"""Most values of a label that names tasks or callers."""
UNKNOWN_TASK: Final = "unknown"
OTHER: Final = "other"

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS: Final = (16, 64, 256, 1024, 2048, 4096, 8192, 16_384, 65_536)


class Metrics:
    """The metrics of one application; two applications in one process have two sets."""

    def __init__(self) -> None:
        # The children are cached by label, because a look-up takes longer than an increment.
        registry = CollectorRegistry()
        self._registry = registry
        self._task_labels = LabelValues()
        self._caller_labels = LabelValues()
        ProcessCollector(registry=registry)
        http_requests = Counter(
            "nunatak_http_requests",
            "Requests by route template",
            ["route", "method", "status"],
            registry=registry,
        )
        self._http_requests = cache(http_requests.labels)
        http_seconds = Histogram(
            "nunatak_http_request_seconds",
            "Time from the head of a request to the end of its answer",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self._http_seconds = cache(http_seconds.labels)
        requests = Counter(
            "nunatak_requests", "Answers by task", ["task", "outcome"], registry=registry
        )
        self._requests = cache(requests.labels)
        callers = Counter(
            "nunatak_caller_requests", "Requests by caller", ["caller", "status"], registry=registry
        )
        self._caller_requests = cache(callers.labels)
        caller_tokens = Counter(
            "nunatak_caller_tokens",
            "Tokens of the rows computed for a caller",
            ["caller"],
            registry=registry,
        )
        self._caller_tokens = cache(caller_tokens.labels)
        self._task_rows = _by_task("task_rows", "Rows computed for a task", registry)
        self._task_tokens = _by_task(
            "task_tokens", "Tokens of the rows computed for a task", registry
        )
        self._task_queue = _by_task(
            "task_queue_seconds", "Time that requests of a task waited", registry
        )
        self._queue = _seconds("queue", "Time that the rows of a request waited", registry)
        self._tokenize = _seconds("tokenize", "Time to tokenize a request", registry)
        self._compute = _seconds(
            "compute", "Time of a batch, with the batches that preempted it", registry
        )
        self._load = _seconds("load", "Time to load and probe a task version", registry)
        self._batch_rows = Histogram(
            "nunatak_batch_rows", "Rows of a batch", buckets=ROWS, registry=registry
        )
        self._batch_tokens = Histogram(
            "nunatak_batch_tokens", "Tokens of a batch", buckets=TOKENS, registry=registry
        )
        self._batch_tasks = Histogram(
            "nunatak_batch_tasks", "Task versions in a batch", buckets=ROWS, registry=registry
        )
        self._shared_rows = Counter(
            "nunatak_shared_trunk_rows",
            "Rows that share the trunk row of another row of their batch",
            registry=registry,
        )
        self._padding_saved = Counter(
            "nunatak_padding_saved_tokens",
            "Tokens that padding the rows of a batch to the longest would have added",
            registry=registry,
        )
        self._load_wait = _seconds(
            "load_wait", "Time that a request waited for a task version to load", registry
        )
        loads = Counter(
            "nunatak_loads",
            "Attempts to load a task version",
            ["task", "outcome"],
            registry=registry,
        )
        self._loads = cache(loads.labels)
        self._evictions = _by_task("evictions", "Task versions evicted from memory", registry)
        long_inputs = Counter(
            "nunatak_long_inputs",
            "Inputs with more tokens than a task reads at once, by treatment",
            ["task", "on_long"],
            registry=registry,
        )
        self._long_inputs = cache(long_inputs.labels)
        self._alias_moves = _by_task(
            "alias_moves",
            "References that mean another version than at their last look-up",
            registry,
        )

    def include(self, collector: Collector) -> None:
        self._registry.register(collector)

    def observe_http(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP request by the template of its route, never by its path."""
        self._http_requests(route, method, status).inc()
        self._http_seconds(route).observe(seconds)

    def observe_request(self, task: str | None, outcome: str) -> None:
        """Count one answer of one task; None stands for a task that may not exist."""
        self._requests(self._task_label(task), outcome).inc()

    def observe_caller(
        self, caller: str, *, status: int, predictions: Sequence[PredictionRecord]
    ) -> None:
        """Count one answered request of a caller, and its work."""
        label = self._caller_labels.of(caller)
        self._caller_requests(label, status).inc()
        num_tokens = sum(version.num_tokens for it in predictions for version in it.versions)
        self._caller_tokens(label).inc(num_tokens)

    def observe_prediction(self, record: PredictionRecord) -> None:
        """Count the work of each task version for one request."""
        for version in record.versions:
            if version.slowest is None:
                continue
            label = self._task_label(version.task)
            self._task_rows(label).inc(version.num_rows)
            self._task_tokens(label).inc(version.num_tokens)
            self._task_queue(label).inc(version.slowest.queue_s)

    def observe_stages(self, *, queue_s: float, tokenize_s: float) -> None:
        self._queue.observe(queue_s)
        self._tokenize.observe(tokenize_s)

    def observe_batch(self, report: BatchReport) -> None:
        self._compute.observe(report.compute_s)
        self._batch_rows.observe(report.num_rows)
        self._batch_tokens.observe(report.num_tokens)
        self._batch_tasks.observe(report.num_tasks)
        self._shared_rows.inc(report.num_shared_rows)
        self._padding_saved.inc(report.num_padding_saved)

    def observe_load(self, task: str, *, seconds: float, succeeded: bool) -> None:
        label = self._task_label(task)
        loaded, failed = self._loads(label, OK), self._loads(label, "failed")
        (loaded if succeeded else failed).inc()
        self._load.observe(seconds)
        # Create these counters at 0: a rate ignores the step with which a counter appears.
        self._evictions(label)
        self._alias_moves(label)
        for on_long in OnLong:
            self._long_inputs(label, on_long.value)

    def observe_load_wait(self, seconds: float) -> None:
        self._load_wait.observe(seconds)

    def observe_long_input(self, task: str, on_long: OnLong) -> None:
        """Count one input with more tokens than its task reads at once, by treatment."""
        self._long_inputs(self._task_label(task), on_long.value).inc()

    def observe_evictions(self, tasks: Sequence[str]) -> None:
        """Record evicted versions, each by its task."""
        for task in tasks:
            self._evictions(self._task_label(task)).inc()

    def observe_alias_move(self, task: str) -> None:
        """Record that a reference means another version than at its last look-up."""
        self._alias_moves(self._task_label(task)).inc()

    def render(self, state: ServerState) -> bytes:
        """Return all metrics as text, with `state`; may take milliseconds."""
        held = StateCollector(state, task_label=self._task_label)
        return generate_latest(self._registry) + generate_latest(held)

    def _task_label(self, task: str | None) -> str:
        return UNKNOWN_TASK if task is None else self._task_labels.of(task)


class LabelValues:
    """The values of one label, bounded in number."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """Return the name itself; `other` for new names beyond the bound."""
        if name not in self._known:
            if len(self._known) >= MAX_LABEL_VALUES:
                return OTHER
            self._known.add(name)
        return name


def _seconds(stage: str, documentation: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"nunatak_{stage}_seconds", documentation, buckets=SECONDS, registry=registry)


def _by_task(
    what: str, documentation: str, registry: CollectorRegistry
) -> Callable[[str], Counter]:
    # Only sums, because a scrape of histograms for a thousand tasks would take most of a second.
    return cache(Counter(f"nunatak_{what}", documentation, ["task"], registry=registry).labels)


class TrunkCacheCollector(Collector):
    """Reads the counters of the trunk cache at each scrape, so a forward pass pays nothing."""

    def __init__(self, stats: Callable[[], TrunkCacheStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        counters = (
            ("hits", "Trunk states that were read", stats.hits),
            ("misses", "Trunk states that had to be computed", stats.misses),
            ("evictions", "Trunk states dropped to keep the budget", stats.evictions),
            ("saved_tokens", "Tokens of the trunk states that were read", stats.saved_tokens),
        )
        for name, documentation, value in counters:
            yield CounterMetricFamily(f"nunatak_trunk_cache_{name}", documentation, value=value)
        gauges = (
            ("states", "Trunk states in memory", stats.num_states),
            ("bytes", "Bytes of trunk states in memory", stats.num_bytes),
            ("max_bytes", "Budget of the trunk cache", stats.max_bytes),
        )
        for name, documentation, value in gauges:
            yield GaugeMetricFamily(f"nunatak_trunk_cache_{name}", documentation, value=value)
