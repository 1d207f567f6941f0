"""Records of answered requests, and metrics in the Prometheus text format.

A record holds names, counts and times, and nothing of the input. Times are readings of the
monotonic clock, in seconds.

Labels are bounded: task names come from the registry and never from a request, callers are names of
keys, routes are templates, and outcomes are error codes. Any thread may call the methods.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    Summary,
    generate_latest,
)

from nunatak_contract.enums import OnLong
from nunatak_contract.wire import PredictedValue
from nunatak_server.engine.compute import BatchReport
from nunatak_server.scheduler.rows import RowAnswer
from nunatak_server.telemetry.memory import ServerState

OK: Final = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWork:
    task: str
    version: int
    outcome: str
    num_rows: int
    num_tokens: int
    """Tokens of the rows, counted as trunk and as branch, shared or not."""
    slowest: RowAnswer | None
    """The row that was answered last, which gives the times; None if no row was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord:
    tokenize_started_at: float
    tokenize_s: float
    versions: tuple[VersionWork, ...]


PredictionObserver = Callable[[PredictionRecord], None]
"""Receives each prediction, on the event loop, in the context of its request."""


@dataclass(slots=True, kw_only=True)
class RequestNotes:
    """Facts about a request for its log line, which only inner layers know."""

    predictions: list[PredictionRecord] = field(default_factory=list[PredictionRecord])
    """One record, or one for each part of a stream."""
    task: str | None = None
    """The task or version that the request has looked up and found."""
    verdict: Mapping[str, object] = field(default_factory=dict[str, object])
    """The policy, the action and the rules that apply."""


current_notes: ContextVar[RequestNotes | None] = ContextVar("nunatak_request_notes", default=None)
"""The notes of the request in whose context the code runs."""


def notes() -> RequestNotes:
    """Return the notes of the present request; outside of one, notes that nobody reads."""
    return current_notes.get() or RequestNotes()


def note_prediction(record: PredictionRecord) -> None:
    notes().predictions.append(record)


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_VALUES: Final = 1000
"""Most values of a label that names tasks or callers."""
UNKNOWN_TASK: Final = "unknown"
OTHER: Final = "other"

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS: Final = (16, 64, 256, 1024, 2048, 4096, 8192, 16_384, 65_536)
DRIFT_BOUNDS: Final = (0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds of the histogram of drifts; one more count holds the drifts above."""
TASK: Final = ("task",)
# By task only sums: a scrape of histograms for a thousand tasks would take most of a second.
COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "http_requests": ("Requests by route template", ("route", "method", "status")),
    "requests": ("Answers by task", ("task", "outcome")),
    "caller_requests": ("Requests by caller", ("caller", "status")),
    "caller_tokens": ("Tokens of the rows computed for a caller", ("caller",)),
    "task_rows": ("Rows computed for a task", TASK),
    "known_rows": ("Rows of policies that were answered before", TASK),
    "task_tokens": ("Tokens of the rows computed for a task", TASK),
    "task_queue_seconds": ("Time that requests of a task waited", TASK),
    "shared_trunk_rows": ("Rows that share the trunk row of another row of their batch", ()),
    "padding_saved_tokens": (
        "Tokens that padding the rows of a batch to the longest would have added",
        (),
    ),
    "loads": ("Attempts to load a task version", ("task", "outcome")),
    "evictions": ("Task versions evicted from memory", TASK),
    "long_inputs": (
        "Inputs with more tokens than a task reads at once, by treatment",
        ("task", "on_long"),
    ),
    "predicted_labels": ("Answered inputs by the label that a task predicts", ("task", "label")),
    "alias_moves": ("References that mean another version than at their last look-up", TASK),
    "split_requests": (
        "Answers of tasks whose alias has a canary, by the version that answered",
        ("task", "arm", "outcome"),
    ),
    "shadow_inputs": ("Inputs of a shadow, by outcome", ("task", "outcome")),
    "verdicts": (
        "Verdicts by policy and decision; `by` says whether the rules decided, or on_failure",
        ("policy", "mode", "action", "by"),
    ),
    "verdict_rules": (
        "Verdicts in which a rule of a policy applies",
        ("policy", "mode", "rule", "action"),
    ),
    "decisions": (
        "Questions by card and by who answered: task, embeddings, upstream, or a failure's code",
        ("card", "by"),
    ),
    "decisions_unsure": (
        "Answers below the confidence of their card; the upstream agrees, differs, or has failed",
        ("card", "upstream"),
    ),
}
"""The text and the labels of each counter."""
HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[float, ...], tuple[str, ...]]]] = {
    "http_request_seconds": (
        "Time from the head of a request to the end of its answer",
        SECONDS,
        ("route",),
    ),
    "queue_seconds": ("Time that the rows of a request waited", SECONDS, ()),
    "tokenize_seconds": ("Time to tokenize a request", SECONDS, ()),
    "compute_seconds": ("Time of a batch, with the batches that preempted it", SECONDS, ()),
    "load_seconds": ("Time to load and probe a task version", SECONDS, ()),
    "batch_rows": ("Rows of a batch", ROWS, ()),
    "batch_tokens": ("Tokens of a batch", TOKENS, ()),
    "batch_tasks": ("Task versions in a batch", ROWS, ()),
    "load_wait_seconds": ("Time that a request waited for a task version to load", SECONDS, ()),
    "shadow_score_drift": (
        "Largest absolute difference of the scores of a shadow, by input",
        DRIFT_BOUNDS,
        TASK,
    ),
}
"""The text, the buckets and the labels of each histogram."""

MetricT = TypeVar("MetricT", Counter, Histogram)


class Metrics:
    """The metrics of one application; two applications in one process have two sets."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._names = defaultdict[str, LabelValues](LabelValues)
        ProcessCollector(registry=registry)
        self._count = {
            name: _children(Counter(f"nunatak_{name}", text, labels, registry=registry), labels)
            for name, (text, labels) in COUNTERS.items()
        }
        self._histograms = {
            name: _children(
                Histogram(f"nunatak_{name}", text, labels, buckets=buckets, registry=registry),
                labels,
            )
            for name, (text, buckets, labels) in HISTOGRAMS.items()
        }
        self.decision_seconds = Summary(
            "nunatak_decisions_seconds",
            "Seconds until an answer by card and by what answered",
            ["card", "by"],
            registry=registry,
        )

    def count(self, name: str, *labels: str) -> None:
        """Count one event; labels that name a thing of the operator must be `bounded`."""
        self._count[name](*labels).inc()

    def count_task(self, name: str, task: str | None, *labels: str, by: float = 1) -> None:
        """Count events of a task; None is a request for no task that certainly exists."""
        self._count[name](self.task_label(task), *labels).inc(by)

    def bounded(self, kind: str, name: str, *, within: str = "") -> str:
        """Return a name for a label, or `OTHER` if too many of its kind are known."""
        is_known = self._names[kind].of(f"{within}/{name}") != OTHER
        return name if is_known else OTHER

    def observe_http(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP request by the template of its route, never by its path."""
        self._count["http_requests"](route, method, status).inc()
        self._histograms["http_request_seconds"](route).observe(seconds)

    def observe_predicted(self, task: str, predicted: Iterable[PredictedValue]) -> None:
        """Count the label, or each of several, that a task predicts for an input."""
        names = (
            (it,) if isinstance(it, str) else it for it in predicted if not isinstance(it, float)
        )
        own = self.task_label(task)
        for label, count in Tally(chain.from_iterable(names)).items():
            name = self.bounded("label", label, within=own)
            self._count["predicted_labels"](own, name).inc(count)

    def observe_caller(
        self, caller: str, *, status: int, predictions: Sequence[PredictionRecord]
    ) -> None:
        label = self._names["caller"].of(caller)
        self._count["caller_requests"](label, status).inc()
        versions = (version for it in predictions for version in it.versions)
        num_tokens = sum(it.num_tokens for it in versions if it.slowest is not None)
        self._count["caller_tokens"](label).inc(num_tokens)

    def observe_prediction(self, record: PredictionRecord) -> None:
        for version in record.versions:
            if version.slowest is None:
                continue
            label = self.task_label(version.task)
            self._count["task_rows"](label).inc(version.num_rows)
            self._count["task_tokens"](label).inc(version.num_tokens)
            self._count["task_queue_seconds"](label).inc(version.slowest.queue_s)

    def observe_stages(self, *, queue_s: float, tokenize_s: float) -> None:
        self._histograms["queue_seconds"]().observe(queue_s)
        self._histograms["tokenize_seconds"]().observe(tokenize_s)

    def observe_batch(self, report: BatchReport) -> None:
        self._histograms["compute_seconds"]().observe(report.compute_s)
        self._histograms["batch_rows"]().observe(report.num_rows)
        self._histograms["batch_tokens"]().observe(report.num_tokens)
        self._histograms["batch_tasks"]().observe(report.num_tasks)
        self._count["shared_trunk_rows"]().inc(report.num_shared_rows)
        self._count["padding_saved_tokens"]().inc(report.num_padding_saved)

    def observe_load(self, task: str, *, seconds: float, succeeded: bool) -> None:
        label = self.task_label(task)
        loaded, failed = self._count["loads"](label, OK), self._count["loads"](label, "failed")
        (loaded if succeeded else failed).inc()
        self._histograms["load_seconds"]().observe(seconds)
        # Create these counters at 0: a rate ignores the step with which a counter appears.
        self._count["evictions"](label)
        self._count["alias_moves"](label)
        for on_long in OnLong:
            self._count["long_inputs"](label, on_long.value)

    def observe_load_wait(self, seconds: float) -> None:
        self._histograms["load_wait_seconds"]().observe(seconds)

    def observe_drift(self, task: str, drift: float) -> None:
        self._histograms["shadow_score_drift"](self.task_label(task)).observe(drift)

    def render(self, state: ServerState) -> bytes:
        """Return all metrics as text, with `state`; may take milliseconds."""
        return generate_latest(self._registry) + generate_latest(state)

    def task_label(self, task: str | None) -> str:
        return UNKNOWN_TASK if task is None else self._names["task"].of(task)


class LabelValues:
    """The values of one label, bounded in number."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= MAX_LABEL_VALUES:
                return OTHER
            self._known.add(name)
        return name


def _children(metric: MetricT, labels: tuple[str, ...]) -> Callable[..., MetricT]:
    # Cached by label, because a look-up takes longer than an increment.
    return cache(metric.labels if labels else lambda: metric)
