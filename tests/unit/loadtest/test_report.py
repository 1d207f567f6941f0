"""Laws of the report."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from doubles.measured import MEMORY, SERVER
from doubles.refusals import raises
from nunatak_loadtest import Job, LoadReport, Scenario, check_unwritten, render, save_run
from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.report import build_report
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.scenario import (
    Arrivals,
    Closed,
    FileTexts,
    Gamma,
    Objectives,
    Poisson,
    Step,
    Width,
    Zipf,
)

JOB = Job(tasks=("tone", "intent"), scenario=Scenario(name="users"))
SAMPLES = [
    Sample(tasks=("tone",), started_s=0.0, response_ms=10, compute_ms=4, batch_size=2),
    Sample(tasks=("tone",), started_s=0.5, response_ms=30, compute_ms=6, batch_size=4),
    Sample(tasks=("intent",), started_s=1.0, response_ms=1000, error="overloaded"),
]


def report(watched: tuple[MemorySample, ...] = ()) -> LoadReport:
    return build_report(JOB, SAMPLES, server=SERVER, memory=(MEMORY, MEMORY), watched=watched)


TWO_USERS = Closed(users=2)


def run_of(
    samples: list[Sample], arrivals: Arrivals = TWO_USERS, *, error_share: float = 0.0
) -> LoadReport:
    """The report of a run of `tone`."""
    objectives = Objectives(error_share=error_share)
    scenario = Scenario(name="mine", arrivals=arrivals, objectives=objectives)
    job = Job(tasks=("tone",), scenario=scenario)
    return build_report(job, samples, server=SERVER, memory=None, watched=())


def sent(*started_s: float, error: str | None = None, lag_ms: float = 0.0) -> list[Sample]:
    """Requests that begin at these times and take ten milliseconds."""
    return [
        Sample(tasks=("tone",), started_s=it, response_ms=10, error=error, lag_ms=lag_ms)
        for it in started_s
    ]


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


def test_the_title_says_what_the_run_did_and_not_what_the_scenario_planned() -> None:
    scenario = Scenario(
        name="bursty",
        title="Bursts of thirty requests a second",
        arrivals=Gamma(rate_per_s=30, cv=4),
        popularity=Zipf(exponent=1.5),
        widths=(Width(tasks=1), Width(tasks=8)),
        duration_s=60,
    )
    changed = scenario.changed(rate_per_s=7, duration_s=5)

    title = Job(tasks=("a", "b", "c"), scenario=changed).title

    assert title == (
        "7 requests/s in bursts (Gamma, cv 4) for 5 s; 1 or 3 of 3 tasks a request (Zipf 1.5); "
        "new texts of about 32 words"
    )
    texts = FileTexts(path="mine.txt")
    repeating = changed.model_copy(update={"texts": texts, "arrivals": Poisson(rate_per_s=2)})
    assert "texts of mine.txt, which repeat" in Job(tasks=("a",), scenario=repeating).title


def test_every_step_has_its_own_figures_and_every_request_one_step() -> None:
    steps = (Step(users=1, seconds=2), Step(users=4, seconds=3))
    samples = sent(100.0, 101.9, 102.0, 103.0, 104.9) + sent(105.2, error="overloaded")

    built = run_of(samples, Closed(steps=steps))

    first, second = built.steps
    assert (first.users, first.begin_s, first.statistics.requests) == (1, 0, 2)
    assert (second.users, second.begin_s, second.statistics.requests) == (4, 2, 4)
    assert first.statistics.requests_per_s == 1.0
    assert second.statistics.requests_per_s == 1.0
    assert second.statistics.failures == 1
    text = shown(built)
    assert "Steps" in text
    assert "2 to 5" in text


def test_the_time_axis_covers_the_run_in_few_parts() -> None:
    samples = sent(*(100 + number / 10 for number in range(901)))

    windows = run_of(samples).windows

    assert len(windows) == 20
    assert sum(it.statistics.requests for it in windows) == len(samples)
    assert windows[-1].begin_s + windows[-1].seconds == pytest.approx(90)
    assert windows[0].statistics.requests_per_s == pytest.approx(10, rel=0.05)
    assert windows[-1].statistics.requests_per_s == pytest.approx(10, rel=0.05)
    assert "Over time" in shown(run_of(samples))


ENOUGH = tuple(number / 100 for number in range(100))


@pytest.mark.parametrize(
    ("samples", "doubt"),
    [
        pytest.param(sent(*ENOUGH), None, id="counts"),
        pytest.param(sent(*ENOUGH, lag_ms=50), "50.0 ms late", id="late"),
        pytest.param(sent(*ENOUGH[1:]), "99 answers are too few", id="short"),
        pytest.param(
            sent(*ENOUGH) + sent(2.0, error="overloaded"), "1 of 101 requests failed", id="errors"
        ),
        pytest.param([], "0 answers are too few", id="nothing"),
    ],
)
def test_a_run_that_does_not_count_says_so_first(samples: list[Sample], doubt: str | None) -> None:
    built = run_of(samples, Poisson(rate_per_s=100))
    text = shown(built)

    assert len(built.doubts) == (doubt is not None)
    assert text.startswith("THIS RUN DOES NOT COUNT") == (doubt is not None)
    assert doubt is None or doubt in text


def test_failures_that_the_scenario_allows_are_no_doubt() -> None:
    samples = sent(*ENOUGH) + sent(2.0, error="overloaded")

    assert not run_of(samples, error_share=0.01).doubts


def test_a_key_without_all_tasks_gets_a_report_without_memory() -> None:
    text = shown(run_of(sent(*ENOUGH)))

    assert "no memory: that needs a key with the scope `read` for all tasks" in text


def test_tasks_that_were_left_out_are_named() -> None:
    job = JOB.model_copy(update={"left_out": ("pairs", "ranks")})
    built = build_report(job, SAMPLES, server=SERVER, memory=(MEMORY, MEMORY), watched=())

    assert "no single text: pairs, ranks" in shown(built)


def test_a_result_is_never_overwritten(tmp_path: Path) -> None:
    first = save_run(tmp_path / "new", report(), SAMPLES)
    before = first.read_bytes()

    with raises("invalid_settings", match="never overwritten"):
        check_unwritten(tmp_path / "new", JOB.scenario)
    with raises("invalid_settings", match="never overwritten"):
        save_run(tmp_path / "new", run_of([]).model_copy(update={"job": JOB}), [])
    assert first.read_bytes() == before
    check_unwritten(tmp_path / "other", JOB.scenario)
