"""Laws of load tests: the drawn requests and their times, the report, and the locustfile."""

import io
import itertools
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from doubles.measured import MEMORY, SERVER
from doubles.refusals import raises
from nunatak_client import Client
from nunatak_loadtest import process
from nunatak_loadtest.process import LOCUSTFILE, run_locust
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
from nunatak_loadtest.scenarios import FEWEST_USERS, MOST_USERS, SCENARIOS, Scenario, scenario_named
from nunatak_loadtest.traffic import Requests, gaps, read_texts, task_weights, tasks_of

TASKS = tuple(f"task{number}" for number in range(16))
PLAIN = Scenario(name="x")
STEPS = Scenario(name="x", steps=((1, 10), (4, 5)), warm_up_s=2)


@pytest.mark.parametrize("cv", [1.0, 4.0, 0.25], ids=["poisson", "bursts", "steady"])
def test_gaps_have_their_mean_and_coefficient_of_variation(cv: float) -> None:
    found = list(itertools.islice(gaps(50, cv, seed=1), 20_000))

    assert abs(mean(found) * 50 - 1) < 0.1
    assert abs(stdev(found) / mean(found) / cv - 1) < 0.1


def test_requests_are_a_function_of_their_seed() -> None:
    one, same, other = (
        [requests.draw() for _ in range(20)]
        for requests in (Requests(PLAIN, TASKS, seed=seed) for seed in (1, 1, 2))
    )

    assert one == same
    assert one != other


# Shares of the top task and of the top tenth of 200 tasks, for the settings of S-LoRA and Punica.
@pytest.mark.parametrize(
    ("zipf", "top", "tenth"), [(0.8, 0.10, 0.47), (1.0, 0.17, 0.61), (1.2, 0.26, 0.74)]
)
def test_zipf_has_the_published_shares(zipf: float, top: float, tenth: float) -> None:
    weights = task_weights(zipf, 200)

    assert weights[0] == pytest.approx(top, abs=0.01)
    assert sum(weights[:20]) == pytest.approx(tenth, abs=0.01)


@given(num_tasks=st.integers(1, 300), zipf=st.floats(0.1, 3))
def test_weights_are_shares_from_most_to_least(num_tasks: int, zipf: float) -> None:
    weights = task_weights(zipf, num_tasks)

    assert sum(weights) == pytest.approx(1)
    assert list(weights) == sorted(weights, reverse=True)
    assert task_weights(0, num_tasks) == pytest.approx([1 / num_tasks] * num_tasks)


def test_tasks_are_asked_by_their_popularity() -> None:
    requests = Requests(Scenario(name="x", zipf=1), TASKS, seed=3)
    counts = Counter(tasks[0] for tasks, _ in (requests.draw() for _ in range(4000)))

    weights = task_weights(1, 16)
    assert counts["task0"] / 4000 == pytest.approx(weights[0], abs=0.03)
    assert counts["task15"] / 4000 == pytest.approx(weights[15], abs=0.03)


@pytest.mark.parametrize(("width", "asked"), [(1, 1), (8, 8), (40, 16)])
@pytest.mark.parametrize("zipf", [0.0, 2.0])
def test_request_asks_distinct_tasks_and_no_more_than_there_are(
    width: int, asked: int, zipf: float
) -> None:
    requests = Requests(Scenario(name="x", width=width, zipf=zipf), TASKS, seed=0)

    for _ in range(100):
        tasks, _ = requests.draw()
        assert len(set(tasks)) == len(tasks) == asked


def test_drawn_texts_have_their_lengths_and_do_not_repeat() -> None:
    scenario = Scenario(name="x", words=20, sigma=0.6, longest=128)
    requests = Requests(scenario, TASKS, seed=0)

    texts = [requests.draw_text() for _ in range(5000)]

    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[2500] == pytest.approx(20, abs=1)
    assert lengths[0] >= 1
    assert lengths[-1] <= 128
    assert len(set(texts)) > 4990


def test_without_deviation_all_texts_are_equally_long() -> None:
    requests = Requests(Scenario(name="x", words=14, sigma=0), TASKS, seed=0)

    assert {len(requests.draw_text().split()) for _ in range(50)} == {14}


def test_texts_of_a_file_are_its_lines_without_blank_ones(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("one two\n\n  three \n", encoding="utf-8")

    texts = read_texts(file)

    assert texts == ("one two", "three")
    requests = Requests(PLAIN, TASKS, seed=0, texts=texts)
    assert {requests.draw_text() for _ in range(50)} == set(texts)


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, "unreadable_file", "cannot be read"),
        (b"\n \n", "invalid_settings", "holds no text"),
        (b"\xff", "invalid_row", "not UTF-8"),
    ],
)
def test_file_without_texts_is_refused(
    tmp_path: Path, content: bytes | None, code: str, said: str
) -> None:
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_bytes(content)

    with raises(code, match=said):
        read_texts(file)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.name)
def test_every_scenario_has_users_until_its_end_and_says_what_it_is(scenario: Scenario) -> None:
    end_s = scenario.warm_up_s + scenario.seconds

    assert scenario.title
    assert scenario_named(scenario.name) is scenario
    assert scenario.users_at(0)
    assert scenario.users_at(end_s - 0.01)
    assert scenario.users_at(end_s) is None


@pytest.mark.parametrize(("second", "users"), [(0, 1), (11.9, 1), (12, 4), (16.9, 4), (17, None)])
def test_steps_follow_each_other_and_the_first_is_warmed_up(
    second: float, users: int | None
) -> None:
    assert STEPS.users_at(second) == users


@pytest.mark.parametrize(
    ("rate", "users"), [(0.5, FEWEST_USERS), (100, 400), (100_000, MOST_USERS)]
)
def test_an_open_loop_has_users_for_its_rate_within_limits(rate: float, users: int) -> None:
    assert Scenario(name="x", rate_per_s=rate).users_at(0) == users


def test_users_close_the_loop_and_a_rate_opens_it_and_keeps_the_bursts() -> None:
    bursty = scenario_named("bursty")

    closed, faster = bursty.changed(users=3), bursty.changed(rate_per_s=5)

    assert (closed.rate_per_s, closed.users_at(0), closed.seconds) == (None, 3, 60)
    assert (faster.rate_per_s, faster.cv, faster.seconds) == (5, 4, 60)
    assert STEPS.changed(users=3).seconds == 15


def test_a_short_run_warms_up_no_longer_than_it_measures() -> None:
    short = scenario_named("single").changed(seconds=2)

    assert (short.seconds, short.warm_up_s) == (2, 2)


def test_options_that_exclude_each_other_or_are_missing_are_refused() -> None:
    with raises("invalid_settings", match="one policy, and each once, got none; name it by --task"):
        tasks_of(Client("http://127.0.0.1:1"), scenario_named("verdicts"), ())
    with raises("invalid_settings", match="not both"):
        STEPS.changed(users=3, rate_per_s=5)
    with raises("invalid_settings", match="steps of scenario 'x' take 15 s"):
        STEPS.changed(seconds=3)
    assert STEPS.changed(users=3, seconds=3).seconds == 3


@pytest.mark.parametrize(
    ("lines", "said"),
    [(("ValueError: the cause", "the end"), "ValueError: the cause"), ((), "nothing")],
)
def test_a_run_without_a_report_says_its_last_error(
    lines: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_server(*_: object) -> tuple[tuple[str, ...], None]:
        return (), None

    locust = tmp_path / "locust"
    locust.write_text("\n".join(["#!/bin/sh", *(f"echo '{it}' >&2" for it in lines), "exit 3"]))
    locust.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(locust))
    monkeypatch.setattr(process, "tasks_of", no_server)

    with raises("loadtest_failed", match=f"code 3 .* last error: {said}$"):
        run_locust("smoke", server="http://127.0.0.1:9")


def test_only_the_locustfile_and_its_summary_import_locust() -> None:
    modules = sorted(it.stem for it in LOCUSTFILE.parent.glob("*.py"))
    light = [it for it in modules if it not in {"locustfile", "summary"}]
    imports = "\n".join(f"import nunatak_loadtest.{it}" for it in light)
    code = f"import sys\n{imports}\nimport nunatak_cli.main\nassert 'gevent' not in sys.modules"

    done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - our own code

    assert done.returncode == 0


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
        ({"requests": 100}, 5.0, ""),
    ],
)
def test_late_failed_and_short_runs_do_not_count(
    changes: dict[str, int], late_ms: float, said: str
) -> None:
    doubts = list(doubts_of(GOOD.model_copy(update=changes), late_ms))

    assert any(said in doubt for doubt in doubts) if said else doubts == []


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


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (("pss_bytes", "rss_bytes"), "as it reports PSS"),
        (("ledger",), "no memory: that needs a key"),
    ],
    ids=["nobody watched the process", "the key may not read the memory"],
)
def test_memory_that_nobody_saw_is_left_out(unknown: tuple[str, ...], said: str) -> None:
    unseen = SAMPLE.model_copy(update=dict.fromkeys(unknown))

    assert said in shown(report(memory=(unseen,)))


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
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gone:
        gone.communicate(b"\n")

    assert process_bytes(gone.pid) == {}
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


LATE_BUT_ROUNDED = """
from locust.stats import RequestStats
from nunatak_loadtest import locustfile as it
from nunatak_loadtest.report import Started
from nunatak_loadtest.scenarios import scenario_named

class Answer:
    status_code, headers, request_meta = 200, {}, {}
    def json(self): return {}
    def failure(self, code): raise AssertionError(code)
    def __enter__(self): return self
    def __exit__(self, *_): stats.log_request("POST", "x", self.request_meta["response_time"], 0)

now, stats = [0.0], RequestStats()
it.time.perf_counter = lambda: now[0]
it.RUN.scenario = scenario_named("single")
it.RUN.draws = it.Requests(it.RUN.scenario, ["x"], seed=1)
user = object.__new__(it.PredictUser)
user.due_s, user.headers = None, {}
class Session:
    def post(self, *_, **named):
        now[0] += took_s
        return Answer()
user.client = Session()
for took_s in (0.2, 0.2004, 0.204):
    user.ask()
started = Started.model_construct(scenario=it.RUN.scenario)
it.doubts_of = lambda *_: ()
it.LoadReport = lambda **named: named
report = it.build_report(started, stats, it.RUN.details, [])
assert set(stats.total.response_times) == {200}
assert report["attained_share"] == 1 / 3, report
"""
SLOW_TO_LOAD = """
from types import SimpleNamespace
from nunatak_loadtest import locustfile as it

shape = it.ScenarioShape()
shape.start_time -= 100
it.tasks_of = lambda *_: (("x",), ())
it.listening_pid = lambda _: None
it._watch = it.Started = lambda *_, **__: None
class Client:
    def __init__(self, *_): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def predict(self, *_, **__): pass
    def info(self): pass
it.Client = Client
it._prepare(SimpleNamespace(shape_class=shape, parsed_options=None, host=None, runner=None))
assert shape.get_run_time() < 50
"""


DEFAULTS = """
import argparse
from nunatak_loadtest.locustfile import add_options
parser = argparse.ArgumentParser()
add_options(parser)
assert None not in vars(parser.parse_args([])).values()
"""


CODES = {
    "the-objective-counts-times-that-nobody-rounded": LATE_BUT_ROUNDED,
    "the-loading-of-tasks-is-no-part-of-the-run": SLOW_TO_LOAD,
    "every-option-has-a-default-whose-type-the-web-page-reads": DEFAULTS,
}
EACH_IN_A_FORK = f"""
import os
import nunatak_loadtest.locustfile
for name, code in {CODES}.items():
    if (child := os.fork()) == 0:
        exec(code, {{}})
        os._exit(0)
    print(name, os.waitpid(child, 0)[1], flush=True)
"""
"""An import of Locust takes seconds. A child that fails ends the loop by its error."""


@pytest.fixture(scope="module")
def statuses() -> dict[str, str]:
    command = [sys.executable, "-c", EACH_IN_A_FORK]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own code
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", CODES)
def test_the_locustfile_keeps_its_word(name: str, statuses: dict[str, str]) -> None:
    assert statuses[name] == "0"
