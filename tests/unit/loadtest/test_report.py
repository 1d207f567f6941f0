"""Laws of the report."""

import io

from rich.console import Console

from doubles.measured import MEMORY, SERVER
from nunatak_loadtest import Job, LoadReport, Scenario, render
from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.report import build_report
from nunatak_loadtest.samples import Sample

JOB = Job(tasks=("tone", "intent"), scenario=Scenario(name="users"))
SAMPLES = [
    Sample(tasks=("tone",), started_s=0.0, response_ms=10, compute_ms=4, batch_size=2),
    Sample(tasks=("tone",), started_s=0.5, response_ms=30, compute_ms=6, batch_size=4),
    Sample(tasks=("intent",), started_s=1.0, response_ms=1000, error="overloaded"),
]


def report(watched: tuple[MemorySample, ...] = ()) -> LoadReport:
    return build_report(JOB, SAMPLES, server=SERVER, memory=(MEMORY, MEMORY), watched=watched)


def shown(report: LoadReport) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(render(report))
    return stream.getvalue()


def test_requests_add_up_over_the_tasks() -> None:
    built = report()

    assert built.overall.requests == sum(task.requests for task in built.tasks.values()) == 3
    assert built.span_s == 2.0
    assert built.tasks["tone"].requests_per_s == 1.0
    assert built.tasks["intent"].failures == 1


def test_task_that_was_never_asked_is_still_reported() -> None:
    built = build_report(JOB, [], server=SERVER, memory=(MEMORY, MEMORY), watched=())

    assert built.tasks["intent"].requests == 0
    assert "intent" in shown(built)


def test_process_peak_is_the_highest_sample() -> None:
    watched = (
        MemorySample(at_s=0, rss_bytes=10, pss_bytes=5),
        MemorySample(at_s=1, rss_bytes=30, pss_bytes=8, uss_bytes=7),
        MemorySample(at_s=2, rss_bytes=20),
    )

    peak = report(watched).process_peak

    assert peak is not None
    assert (peak.rss_bytes, peak.pss_bytes, peak.uss_bytes) == (30, 8, 7)


def test_tables_show_what_the_report_holds() -> None:
    text = shown(report())

    for expected in ("tone", "intent", "overloaded (1)", "104.0 MB", "208.0 MB", "50.0%", "minilm"):
        assert expected in text
    assert "as it reports PSS" in text


def test_watched_process_replaces_what_the_server_says_of_itself() -> None:
    text = shown(report((MemorySample(at_s=0, rss_bytes=300_000_000, pss_bytes=200_000_000),)))

    assert "peak PSS" in text
    assert "200.0 MB" in text


def test_report_survives_json() -> None:
    built = report((MemorySample(at_s=0, rss_bytes=10),))

    assert LoadReport.model_validate_json(built.model_dump_json()) == built
