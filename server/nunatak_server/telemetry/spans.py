"""OpenTelemetry spans of requests and batches. Needs the extra `tracing`.

    POST /v1/predict                      one for each request, linked to its batches
      +-- tokenize
      +-- load        (cold versions)     one of each for each task version
      +-- queue
      +-- compute
    batch                                 one for each forward pass, a separate trace

Spans are made from records after the work, with times that are measured anyway. Attributes hold
names and counts, and nothing of the input.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable
from threading import Thread
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nunatak_server import VERSION
from nunatak_server.engine.compute import BatchReport
from nunatak_server.telemetry.metrics import PredictionRecord, VersionWork

PROPAGATED: Final = frozenset({b"traceparent", b"tracestate"})
MAX_REMEMBERED_BATCHES: Final = 1024
"""A request links to its batch once it is answered, which is within a few batches."""
FIRST_SERVER_ERROR: Final = 500
LAST_SPANS_S: Final = 3.0
"""At the end of a server, the collector's time for the spans that have not been sent."""

Attributes = dict[str, str | int]


def otlp_tracing() -> "SpanTracing":
    """Return tracing over OTLP and HTTP, configured by the standard `OTEL_*` variables."""
    # The variables come last, so that they override the default service name.
    named = Resource.create({SERVICE_NAME: "nunatak"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return SpanTracing(provider)


class OpenSpan:
    def __init__(self, span: Span) -> None:
        self._span = span
        self._token = contexts.attach(trace.set_span_in_context(span))

    @property
    def trace_id(self) -> str:
        """The 32 hexadecimal digits by which a collector finds the request."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def end(self, *, route: str, status: int) -> None:
        contexts.detach(self._token)
        self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        if status >= FIRST_SERVER_ERROR:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.update_name(route)
        self._span.end()


class SpanTracing:
    """Makes spans.

    `observe_batch` runs on the engine thread, every other method on the event loop.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("nunatak_server", VERSION)
        self._propagator = TraceContextTextMapPropagator()
        self._batches: OrderedDict[int, SpanContext] = OrderedDict()

    def begin(self, *, method: str, headers: Iterable[tuple[bytes, bytes]]) -> OpenSpan:
        """Open the span of a request, below the span of the caller (W3C traceparent) if any."""
        carrier = {
            name.decode(): value.decode("latin-1") for name, value in headers if name in PROPAGATED
        }
        span = self._tracer.start_span(
            method,
            context=self._propagator.extract(carrier, context=Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method},
        )
        return OpenSpan(span)

    def observe_prediction(self, record: PredictionRecord) -> None:
        """Make spans of the stages of the current request, and link its span to its batches."""
        request = trace.get_current_span()
        if not request.is_recording():
            return
        tokenized_at = record.tokenize_started_at
        self._stage("tokenize", tokenized_at, record.tokenize_s, {})
        for each in record.versions:
            self._version(each, request)

    def observe_batch(self, report: BatchReport) -> None:
        """Make a span of a batch, before the rows are answered."""
        attributes: Attributes = {
            "nunatak.batch.rows": report.num_rows,
            "nunatak.batch.tokens": report.num_tokens,
            "nunatak.batch.tasks": report.num_tasks,
            "nunatak.batch.shared_rows": report.num_shared_rows,
        }
        span = self._stage("batch", report.started_at, report.compute_s, attributes, Context())
        self._batches[report.number] = span.get_span_context()
        while len(self._batches) > MAX_REMEMBERED_BATCHES:
            self._batches.popitem(last=False)

    def close(self) -> None:
        """Send the spans that have not been sent; may take seconds."""
        # The library itself waits for half a minute where the collector is away.
        ending = Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(LAST_SPANS_S)

    def _version(self, record: VersionWork, request: Span) -> None:
        row = record.slowest
        if row is None:
            return
        attributes: Attributes = {
            "nunatak.task": record.task,
            "nunatak.version": record.version,
            "nunatak.rows": record.num_rows,
            "nunatak.outcome": record.outcome,
        }
        submitted_at = row.started_at - row.queue_s
        if row.load_s:
            self._stage("load", submitted_at - row.load_s, row.load_s, attributes)
        self._stage("queue", submitted_at, row.queue_s, attributes)
        computed = attributes | {"nunatak.batch.rows": row.batch_rows}
        self._stage("compute", row.started_at, row.compute_s, computed)
        batch = self._batches.get(row.batch)
        if batch is not None:
            request.add_link(batch, {"nunatak.task": record.task})

    def _stage(
        self,
        name: str,
        started_at: float,
        seconds: float,
        attributes: Attributes,
        context: Context | None = None,
    ) -> Span:
        begin_ns = time.time_ns() - time.monotonic_ns() + int(started_at * 1e9)
        span = self._tracer.start_span(
            name, context=context, start_time=begin_ns, attributes=attributes
        )
        span.end(end_time=begin_ns + int(seconds * 1e9))
        return span
