"""The load test as a locustfile: users for predict, fan-out and verdicts, and the run's shape.

    locust -f .../nunatak_loadtest/locustfile.py --host http://127.0.0.1:8080 --scenario single

In a closed loop each user waits for an answer before the next request. In an open loop the users of
a process share one schedule: an idle user takes the next due time, waits for it, and sends. If all
users wait for answers, a request leaves late. The time of every request of an open loop runs from
its due time, so a server that stands still looks as slow as it is. (Tene calls the opposite
coordinated omission.)

Locust reads a locustfile by importing it, so the listeners register here at import, and the state
of the one run of this process is in this module.
"""

import logging
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import randbits
from typing import Any
from urllib.parse import quote

import gevent  # pyrefly: ignore[untyped-import] - no stubs
from locust import FastHttpUser, LoadTestShape, User, events, task
from locust.env import Environment
from locust.event import EventHook
from locust.exception import StopUser
from locust.runners import STATE_STOPPED, STATE_STOPPING, MasterRunner, Runner, WorkerRunner
from locust.stats import RequestStats, StatsEntry

from nunatak_client import Client
from nunatak_contract.errors import NunatakError
from nunatak_contract.wire import COMPUTE_HEADER, QUEUE_HEADER, TOKENIZE_HEADER
from nunatak_loadtest.report import (
    IN_TIME,
    LATE,
    LoadReport,
    MemorySample,
    Started,
    Timed,
    cache_hit_share,
    doubts_of,
    ledger_of,
    listening_pid,
    process_bytes,
)
from nunatak_loadtest.scenarios import SCENARIOS, Asks, Scenario, scenario_named
from nunatak_loadtest.traffic import Requests, gaps, read_texts, tasks_of

DEFAULT_SERVER = "http://127.0.0.1:8080"
SERVER_PARTS = (QUEUE_HEADER, TOKENIZE_HEADER, COMPUTE_HEADER)
LOAD_DEADLINE_S = 120.0
"""Longest time until a task that is not in memory has answered its first text."""
MEMORY_INTERVAL_S = 1.0
WORKER_SLACK_S = 1.0
"""Most time from the start of the shape to the start of the workers."""
STOPPED = {STATE_STOPPING, STATE_STOPPED}
DETAILS = "nunatak_details"
memory_sampled = EventHook()
"""Fires with `sample`, a `MemorySample`, each second of a run, where no worker runs."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """The run of this process: its questions, and the measures that Locust does not keep."""

    scenario: Scenario = SCENARIOS[0]
    gaps: Iterator[float] = field(default_factory=lambda: iter(()))
    due_s: float = 0.0
    """The last due time that a user took, by `time.perf_counter`."""
    draws: Requests | None = None
    started: Started | None = None
    pid: int | None = None
    """The server's process, if it runs on this machine."""
    samples: list[MemorySample] = field(default_factory=list[MemorySample])
    details: RequestStats = field(default_factory=RequestStats)
    """Lateness of the generator, and times that the server reports; a worker sends them along."""

    def next_due_s(self, environment: Environment) -> float:
        """Take the next due time; processes share the rate in proportion to their users."""
        runner, share = environment.runner, 1.0
        if isinstance(runner, WorkerRunner):
            here = sum(runner.target_user_classes_count.values())
            share = max(here, 1) / (self.scenario.users_at(0) or 1)
        self.due_s += next(self.gaps) / share
        return self.due_s


RUN = Asked()


class NunatakUser(FastHttpUser):
    """Base of the users: one connection, the key of `NUNATAK_API_KEY`, and due times."""

    abstract = True
    insecure = False
    asks: Asks

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        key = os.environ.get("NUNATAK_API_KEY")
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.due_s: float | None = None

    def wait_time(self) -> float:
        """Seconds until the next request: none in a closed loop or for a late user."""
        if RUN.scenario.rate_per_s is None or RUN.draws is None:
            self.due_s = None
            return 0.0
        self.due_s = RUN.next_due_s(self.environment)
        return max(0.0, self.due_s - time.perf_counter())

    def on_start(self) -> None:
        self.wait()

    @task
    def ask(self) -> None:
        if RUN.draws is None:
            raise StopUser
        tasks, text = RUN.draws.draw()
        path, body, name = self.request_of(tasks, text)
        sent_s = time.perf_counter()
        due_s = sent_s if self.due_s is None else self.due_s
        with self.client.post(
            path, json=body, name=name, headers=self.headers, catch_response=True
        ) as response:
            took_ms = 1000 * (time.perf_counter() - due_s)
            response.request_meta["response_time"] = took_ms
            failure = failure_of(response)
            if failure is not None:
                response.failure(failure)
            elif took_ms <= RUN.scenario.p99_ms:
                _note("client", IN_TIME, took_ms)
            _note("client", LATE, 1000 * (sent_s - due_s))
            for part in SERVER_PARTS:
                found = (response.headers or {}).get(part)
                if found is not None:
                    _note("server", part, float(str(found)))

    def request_of(self, tasks: tuple[str, ...], text: str) -> tuple[str, dict[str, Any], str]:
        raise NotImplementedError


class PredictUser(NunatakUser):
    """Asks one task about each text."""

    asks = Asks.PREDICT

    def request_of(self, tasks: tuple[str, ...], text: str) -> tuple[str, dict[str, Any], str]:
        return f"/v1/tasks/{quote(tasks[0])}/predict", {"inputs": text}, tasks[0]


class FanOutUser(NunatakUser):
    """Asks several tasks about each text in one request."""

    asks = Asks.FAN_OUT

    def request_of(self, tasks: tuple[str, ...], text: str) -> tuple[str, dict[str, Any], str]:
        return "/v1/predict", {"inputs": text, "tasks": list(tasks)}, f"{len(tasks)} tasks"


class VerdictUser(NunatakUser):
    """Asks a policy for a verdict about each text."""

    asks = Asks.VERDICT

    def request_of(self, tasks: tuple[str, ...], text: str) -> tuple[str, dict[str, Any], str]:
        return f"/v1/verdicts/{quote(tasks[0])}", {"inputs": text}, tasks[0]


USERS: dict[Asks, type[User]] = {it.asks: it for it in (PredictUser, FanOutUser, VerdictUser)}


class ScenarioShape(LoadTestShape):
    """The users of the chosen scenario over time; statistics begin after its warm-up."""

    def __init__(self) -> None:
        super().__init__()
        self._is_warm = False

    def reset_time(self) -> None:
        super().reset_time()
        self._is_warm = False

    def tick(self) -> tuple[int, float, list[type[User]]] | None:
        runner = self.runner
        if runner is None:
            return None
        try:
            scenario = scenario_of(runner.environment.parsed_options)
        except NunatakError as error:
            refuse(runner.environment, error)
            return None
        second = self.get_run_time()
        # Workers forget their warm-up by themselves, and their reports of it may still be underway.
        slack_s = WORKER_SLACK_S if isinstance(runner, MasterRunner) else 0.0
        if not self._is_warm and second >= scenario.warm_up_s + slack_s:
            self._is_warm = True
            forget(runner)
        users = scenario.users_at(second)
        return None if users is None else (users, float(users), [USERS[scenario.asks]])


def forget(runner: Runner) -> None:
    runner.stats.reset_all()
    RUN.details.reset_all()


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    """Add the options, which the web page shows too; there, a value has the type of its default."""
    group = parser.add_argument_group("nunatak")
    group.add_argument("--scenario", choices=[it.name for it in SCENARIOS], default="users")
    group.add_argument("--tasks", default="", help="task references (or a policy), with commas")
    group.add_argument("--waiting-users", type=int, default=0, help="a closed loop of users")
    group.add_argument("--rate", type=float, default=0.0, help="an open loop, requests per second")
    group.add_argument("--seconds", type=float, default=0.0, help="of the measurement")
    group.add_argument("--text-file", default="", help="texts to send, one a line")
    group.add_argument("--seed", type=int, default=0, help="of all draws; 0: a new one")
    group.add_argument("--report", default="", help="file for the report, as JSON")


def scenario_of(options: Namespace | None) -> Scenario:
    given = options or Namespace(scenario="users", waiting_users=0, rate=0.0, seconds=0.0)
    return scenario_named(given.scenario).changed(
        users=given.waiting_users or None,
        rate_per_s=given.rate or None,
        seconds=given.seconds or None,
    )


@events.test_start.add_listener
def prepare(environment: Environment, **_: object) -> None:
    """Find the tasks, load them, and begin to watch the memory.

    Locust only logs what a listener raises, so a run that cannot begin ends here.
    """
    try:
        _prepare(environment)
    except NunatakError as error:
        refuse(environment, error)
        if environment.runner is not None:
            gevent.spawn(environment.runner.quit)


def refuse(environment: Environment, error: NunatakError) -> None:
    """Say why a run cannot begin, and end with status 1."""
    print(f"error [{error.code}]: {error}", file=sys.stderr)  # noqa: T201 - for the user
    environment.process_exit_code = 1


@events.report_to_master.add_listener
def send_details(data: dict[str, Any], **_: object) -> None:
    data[DETAILS] = RUN.details.serialize_stats()
    RUN.details.clear_all()


@events.worker_report.add_listener
def add_details(data: dict[str, Any], **_: object) -> None:
    for it in data.get(DETAILS, ()):
        entry = StatsEntry.unserialize(it, RUN.details)
        RUN.details.get(entry.name, entry.method).extend(entry)


@events.quitting.add_listener
def save_report(environment: Environment, **_: object) -> None:
    """Write the report of the run, where no worker runs."""
    options = environment.parsed_options
    if RUN.started is None or options is None or not options.report:
        return
    report = build_report(RUN.started, environment.stats, RUN.details, RUN.samples)
    Path(options.report).write_text(report.model_dump_json(indent=1), encoding="utf-8")


@memory_sampled.add_listener
def keep_sample(sample: MemorySample, **_: object) -> None:
    RUN.samples.append(sample)


def failure_of(response: Any) -> str | None:  # noqa: ANN401 - Locust's response of either kind
    """Return the code of a failure; an answer in which a task failed is a failure too."""
    if not response.status_code:
        return "connection_failed"
    try:
        body = response.json()
    except ValueError:
        return f"status {response.status_code} without a JSON body"
    if response.status_code != HTTPStatus.OK:
        return str(body.get("code", f"status {response.status_code}"))
    failed = [it["error"]["code"] for it in body.get("results", ()) if "error" in it]
    return failed[0] if failed else None


def _prepare(environment: Environment) -> None:
    RUN.draws = RUN.started = None
    options = environment.parsed_options
    scenario, server = scenario_of(options), environment.host or DEFAULT_SERVER
    given = [it.strip() for it in (options.tasks if options else "").split(",") if it.strip()]
    texts = read_texts(Path(options.text_file)) if options and options.text_file else ()
    seed = (options.seed if options else 0) or randbits(31)
    runner = environment.runner
    is_worker = isinstance(runner, WorkerRunner)
    if isinstance(runner, WorkerRunner):
        seed += runner.worker_index  # a process repeats no text of another one
        gevent.spawn_later(scenario.warm_up_s, forget, runner)
    with Client(server) as client:
        tasks, left_out = tasks_of(client, scenario, given)
        if not is_worker:
            if scenario.asks is not Asks.VERDICT:
                for name in tasks:
                    client.predict(name, "first text", deadline_s=LOAD_DEADLINE_S)
            RUN.started = Started(
                scenario=scenario,
                server=server,
                info=client.info(),
                tasks=tasks,
                left_out=left_out,
                repeats_texts=bool(texts),
                seed=seed,
                workers=runner.worker_count if isinstance(runner, MasterRunner) else 1,
            )
    if not is_worker:
        RUN.pid = listening_pid(server)
        gevent.spawn(_watch, environment)
    RUN.scenario, RUN.due_s = scenario, time.perf_counter()
    RUN.draws = Requests(scenario, tasks, seed=seed, texts=texts)
    RUN.gaps = gaps(scenario.rate_per_s or 1.0, scenario.cv, seed=seed)
    if isinstance(environment.shape_class, ScenarioShape):
        environment.shape_class.reset_time()  # the loading of tasks is no part of the run
    # The requests for the memory are no requests of the run.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    RUN.samples.clear()
    RUN.details.clear_all()


def _watch(environment: Environment) -> None:
    while environment.runner is not None and environment.runner.state not in STOPPED:
        _sample_memory()
        gevent.sleep(MEMORY_INTERVAL_S)


@events.test_stop.add_listener
def _sample_memory(**_: object) -> None:
    """Sample the server that the run has found, also at the end; a worker finds none."""
    if RUN.started is None:
        return
    with Client(RUN.started.server, retries=0) as client:
        ledger = ledger_of(client)
    # The kernel takes a while to count; a thread keeps the users going.
    in_bytes = gevent.get_hub().threadpool.apply(process_bytes, (RUN.pid,))
    memory_sampled.fire(sample=MemorySample(at_s=time.time(), ledger=ledger, **in_bytes))


def _note(method: str, name: str, milliseconds: float) -> None:
    RUN.details.log_request(method, name, round(milliseconds), 0)


def build_report(
    started: Started, stats: RequestStats, details: RequestStats, samples: Sequence[MemorySample]
) -> LoadReport:
    late, total = details.get(LATE, "client"), stats.total
    overall, late_ms = _statistics(total), float(late.get_response_time_percentile(0.99))
    # Locust rounds its times, and does not say how long failed requests took.
    in_time = details.get(IN_TIME, "client").num_requests
    codes = Counter[str]()
    for failure in stats.errors.values():
        codes[str(failure.error).removeprefix("CatchResponseError('").removesuffix("')")] += (
            failure.occurrences
        )
    return LoadReport(
        started=started,
        overall=overall,
        by_name={it.name: _statistics(it) for it in stats.entries.values() if it.num_requests},
        failure_codes=dict(codes.most_common()),
        attained_share=in_time / max(total.num_requests, 1),
        late_p99_ms=late_ms,
        server_ms={
            it.name: it.avg_response_time
            for it in details.entries.values()
            if it.method == "server" and it.num_requests
        },
        cache_hit_share=cache_hit_share(samples),
        memory=tuple(samples),
        doubts=tuple(doubts_of(overall, late_ms)),
    )


def _statistics(entry: StatsEntry) -> Timed:
    p50, p95, p99 = (entry.get_response_time_percentile(it) for it in (0.5, 0.95, 0.99))
    return Timed(
        requests=entry.num_requests,
        failures=entry.num_failures,
        answers_per_s=entry.total_rps - entry.total_fail_per_sec,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=entry.max_response_time,
    )
