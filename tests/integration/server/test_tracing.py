"""Spans of real requests, as a collector would get them."""

import socket
import sys
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from doubles.events import logged_events
from doubles.refusals import raises
from doubles.serving import running_client
from doubles.tasks import publish_tiny_task
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.processes.serving import find_tracing
from nunatak_server.telemetry import spans
from nunatak_server.telemetry.spans import SpanTracing

PREDICT = "/v1/tasks/tone/predict"
ENDS_WITHIN_S = 5
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Spans that have ended."""

    def __init__(self, *, sampled: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(sampled)))
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        """Children in the order of their beginning."""
        finished = self._exporter.get_finished_spans()
        own = [it for it in finished if it.parent and it.parent.span_id == id_of(parent)]
        return sorted(own, key=lambda span: span.start_time or 0)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def publish(opened: Registry, backbone: Backbone) -> None:
    publish_tiny_task(opened, backbone)
    publish_tiny_task(opened, backbone, task="mood")


async def ask(
    collector: Collector,
    backbone: Backbone,
    copied: Registry,
    bodies: Sequence[dict[str, object]],
    **headers: str,
) -> None:
    """Send requests for both tasks, one after another."""
    tracing = SpanTracing(collector.provider)
    async with running_client(backbone, copied, tracing=tracing) as client:
        for body in bodies:
            answer = await client.post("/v1/predict", json=body, headers=headers)
            assert answer.status_code == 200


BODY: dict[str, object] = {"inputs": ["a", "bb"], "tasks": ["tone", "mood"]}


async def test_a_cold_request_is_tokenized_loaded_queued_and_computed(
    backbone: Backbone, copied: Registry
) -> None:
    collector = Collector()

    await ask(collector, backbone, copied, [{"inputs": "a", "tasks": ["tone"]}])

    (request,) = collector.named("/v1/predict")
    stages = collector.below(request)
    assert [stage.name for stage in stages] == ["tokenize", "load", "queue", "compute"]
    assert (request.start_time or 0) <= (stages[0].start_time or 0)
    assert (stages[-1].end_time or 0) <= (request.end_time or 0)
    assert attributes_of(request) == {
        "http.request.method": "POST",
        "http.route": "/v1/predict",
        "http.response.status_code": 200,
    }


@pytest.fixture(scope="module")
async def warm(backbone: Backbone, registry: Registry) -> Collector:
    """The spans of a request, and of the same request once more."""
    collector = Collector()
    await ask(collector, backbone, registry, [BODY, BODY])
    return collector


async def test_a_warm_request_has_a_queue_and_a_compute_for_each_task(warm: Collector) -> None:
    _, request = warm.named("/v1/predict")
    stages = warm.below(request)
    computed = [attributes_of(stage) for stage in stages if stage.name == "compute"]
    assert sorted(stage.name for stage in stages) == [
        "compute", "compute", "queue", "queue", "tokenize",
    ]  # fmt: skip
    assert {found["nunatak.task"] for found in computed} == {"tone", "mood"}
    assert all(found["nunatak.version"] == 1 and found["nunatak.rows"] == 2 for found in computed)
    assert all(found["nunatak.batch.rows"] == 4 for found in computed)


async def test_a_request_is_linked_to_the_batch_it_was_part_of(warm: Collector) -> None:
    _, request = warm.named("/v1/predict")
    batch = warm.named("batch")[-1]
    assert {link.context.span_id for link in request.links} == {id_of(batch)}
    assert attributes_of(batch)["nunatak.batch.rows"] == 4
    assert batch.parent is None


async def test_a_callers_trace_is_continued(backbone: Backbone, copied: Registry) -> None:
    collector = Collector()

    with logged_events() as events:
        await ask(collector, backbone, copied, [BODY], traceparent=f"00-{TRACE}-{PARENT}-01")

    (request,) = collector.named("/v1/predict")
    assert request.context is not None
    assert request.parent is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert events.named("request")[0]["trace_id"] == TRACE


@pytest.mark.parametrize("value", ["", "00-zz", f"00-{'0' * 32}-{PARENT}-01", "x" * 9999])
async def test_a_malformed_trace_begins_a_new_one(
    backbone: Backbone, copied: Registry, value: str
) -> None:
    collector = Collector()

    await ask(collector, backbone, copied, [BODY], traceparent=value)

    (request,) = collector.named("/v1/predict")
    assert request.parent is None


async def test_a_trace_that_the_caller_does_not_sample_is_not_sent(
    backbone: Backbone, copied: Registry
) -> None:
    collector = Collector()

    await ask(collector, backbone, copied, [BODY], traceparent=f"00-{TRACE}-{PARENT}-00")

    assert not collector.named("/v1/predict")
    assert not collector.named("compute")


def test_tracing_is_off_unless_a_collector_is_named() -> None:
    assert find_tracing({}) is None
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert find_tracing(named | {"OTEL_SDK_DISABLED": "true"}) is None
    tracing = find_tracing(named)
    assert tracing is not None
    tracing.close()


@pytest.mark.parametrize("backlog", [None, 1], ids=["down", "silent"])
def test_a_collector_that_is_away_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, backlog: int | None
) -> None:
    monkeypatch.setattr(spans, "LAST_SPANS_S", 0.2)
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if backlog is not None:
            collector.listen(backlog)
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        tracing = spans.otlp_tracing()
        tracing.begin(method="POST", headers=[]).end(route="/v1/predict", status=200)
        began_at = time.monotonic()
        tracing.close()
        assert time.monotonic() - began_at < ENDS_WITHIN_S


def test_tracing_without_its_libraries_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "nunatak_server.telemetry.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with raises("invalid_settings", match=r"nunatak\[tracing\]"):
        find_tracing({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318"})
