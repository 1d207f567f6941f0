"""Laws of the report: when a run counts, and what is shown."""

import io
import os
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from doubles.measured import MEMORY, SERVER
from nunatak_loadtest.report import (
    LoadReport,
    MemorySample,
    Started,
    Timed,
    cache_hit_share,
    doubts_of,
    listening_pid,
    process_bytes,
    render,
)
from nunatak_loadtest.scenarios import scenario_named

GOOD = Timed(requests=200, failures=0, answers_per_s=40, p50_ms=5, p95_ms=9, p99_ms=12, max_ms=13)
STARTED = Started(
    scenario=scenario_named("single"),
    server="http://127.0.0.1:8080",
    info=SERVER,
    tasks=("tone",),
    left_out=("answers",),
    repeats_texts=False,
    seed=1,
    workers=1,
)
SAMPLE = MemorySample(at_s=0, ledger=MEMORY, rss_bytes=700_000_000, pss_bytes=600_000_000)


def report(**changes: object) -> LoadReport:
    built = LoadReport(
        started=STARTED,
        overall=GOOD,
        by_name={"tone": GOOD},
        failure_codes={},
        attained_share=1.0,
        late_p99_ms=0,
        server_ms={},
        cache_hit_share=None,
        memory=(SAMPLE,),
        doubts=(),
    )
    return built.model_copy(update=changes)


def shown(report: LoadReport) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(render(report))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("changes", "late_ms", "said"),
    [
        ({}, 6.0, "6 ms late"),
        ({"failures": 1}, 0.0, "1 of 200 requests failed"),
        ({"failures": 101}, 0.0, "99 answers are too few"),
        ({"requests": 99}, 0.0, "99 answers are too few"),
    ],
)
def test_late_failed_and_short_runs_do_not_count(
    changes: dict[str, int], late_ms: float, said: str
) -> None:
    assert any(said in doubt for doubt in doubts_of(GOOD.model_copy(update=changes), late_ms))


def test_punctual_run_with_enough_answers_counts() -> None:
    assert not list(doubts_of(GOOD.model_copy(update={"requests": 100}), 5.0))


@pytest.mark.parametrize(("share", "outcome"), [(0.99, "met"), (0.98, "missed")])
def test_objective_is_met_by_99_of_100_requests(share: float, outcome: str) -> None:
    built = report(attained_share=share)

    assert built.is_met is (outcome == "met")
    assert f"were: {outcome}" in shown(built)


def test_no_request_meets_no_objective() -> None:
    assert not report(overall=GOOD.model_copy(update={"requests": 0})).is_met


def test_report_shows_doubts_tasks_what_is_left_out_and_the_saved_memory() -> None:
    text = shown(report(doubts=("too few",), failure_codes={"overloaded": 2}))

    assert text.startswith("THIS RUN DOES NOT COUNT\n- too few")
    assert "left out, because they read no single text or need another backbone: answers" in text
    assert "overloaded (2)" in text
    assert "50.0%" in text
    assert "600.0 MB" in text


def test_server_process_that_nobody_watched_is_shown_as_it_reports() -> None:
    unseen = SAMPLE.model_copy(update={"pss_bytes": None, "rss_bytes": None})

    assert "as it reports PSS" in shown(report(memory=(unseen,)))


def test_key_that_may_not_read_the_memory_leaves_it_out() -> None:
    text = shown(report(memory=(SAMPLE.model_copy(update={"ledger": None}),)))

    assert "no memory: that needs a key" in text


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([(10, 10)], None),
        ([(10, 10), (10, 10)], 0),
        ([(10, 10), (12, 12), (13, 17)], 0.3),
        ([(10, 10), (1, 90), (11, 99)], None),
    ],
    ids=["one-sample", "no-request", "some", "another-process"],
)
def test_the_cache_counts_for_one_process_alone(
    counts: list[tuple[int, int]], share: float | None
) -> None:
    def sampled(hits: int, misses: int) -> MemorySample:
        cache = MEMORY.trunk_cache.model_copy(update={"hits": hits, "misses": misses})
        return MemorySample(at_s=0, ledger=MEMORY.model_copy(update={"trunk_cache": cache}))

    assert cache_hit_share([sampled(*it) for it in counts]) == share


def test_memory_of_a_process_is_in_its_order_of_size() -> None:
    found = process_bytes(os.getpid())

    rss, pss, uss = (found[f"{name}_bytes"] for name in ("rss", "pss", "uss"))
    assert rss is not None
    assert rss > 1024**2
    if uss is not None and pss is not None:
        assert uss <= pss <= rss


def test_process_that_is_gone_or_unknown_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.communicate(b"\n")

    assert process_bytes(process.pid) == {}
    assert process_bytes(None) == {}


def test_server_of_this_machine_is_found_by_its_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        assert listening_pid(f"http://127.0.0.1:{port}") == os.getpid()


@pytest.mark.parametrize("server", ["http://192.0.2.1:80", "http://example.org", "nonsense"])
def test_server_of_another_machine_is_not_looked_for(server: str) -> None:
    assert listening_pid(server) is None
