"""Replicas: promotions that wait, kills, outages and restarts under load, each with a control.

Real server processes answer with a tiny backbone, behind HAProxy with the shipped file. Their
registry is in PostgreSQL, through connections that can be cut. Every answer is compared with the
logits of the version that it names. The clients, the proxy, the database and the replicas share the
cores of one machine, so these figures say nothing about throughput.

    PYTHONPATH=tests python -m benchmarks.server.replicas
"""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness.recording import Sheet, figures_parser, open_sheet
from doubles.fleets import (
    Answered,
    Fleet,
    Load,
    Move,
    failed,
    loaded,
    moves_of,
    promote,
    running_fleet,
    stale,
    without_retries,
)
from doubles.object_stores import object_store
from doubles.postgres import PostgresServer, find_binaries, private_postgres
from nunatak_loadtest.samples import percentile

LEASE_S = 3
LONG_LEASE_S = 30
"""Several times the time of a restart of PostgreSQL, as the guide asks for."""
WATCHED_S = 5.0
"""Load before and after an event."""
STORE_DEADLINE_MS = 2000
"""A caller does not wait longer for a version that only the object store has."""
STORE_RETURNS_S = 10.0
"""Time for the loads that hung to end or to be tried again."""
IDLE_S = 10.0
NUM_REPLICAS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The arguments of every part."""

    folder: Path
    postgres: PostgresServer
    sheet: Sheet
    num_answers: int

    @contextmanager
    def fleet(self, name: str, *, blobs: str = "", **settings: object) -> Generator[Fleet]:
        """Start replicas on an empty registry."""
        with running_fleet(
            self.folder / name, self.postgres, replicas=NUM_REPLICAS, blobs=blobs, **settings
        ) as running:
            yield running

    @contextmanager
    def load(self, name: str, fleet: Fleet, changed: Callable[[str], str] = str) -> Generator[Load]:
        """Let callers ask, for a while before the event already."""
        with loaded(self.folder / f"{name}-proxy", fleet, changed=changed) as load:
            time.sleep(WATCHED_S)
            yield load

    def count(self, name: str, value: float, goal: str | None = None, unit: str = "") -> None:
        """Record one number."""
        self.sheet.record(f"cluster.{name}", [value], unit=unit or "answers", goal=goal)


def main() -> None:
    """Measure and record the requested parts."""
    parser = figures_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--answers", type=int, default=100_000, help="of `promote`")
    options, sheet = open_sheet(parser)
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed (apt-get install postgresql)")
    with tempfile.TemporaryDirectory() as folder, private_postgres(binaries) as postgres:
        site = Site(
            folder=Path(folder), postgres=postgres, sheet=sheet, num_answers=options.answers
        )
        for part in options.parts:
            PARTS[part](site)


def promotions(site: Site) -> None:
    """Promote under load, with the wait and without it."""
    with site.fleet("promote", registry_lease_s=LEASE_S) as fleet:
        polling_load(site, fleet)
        with site.load("promote", fleet) as load:
            moves = moves_of(fleet, load, waits=True, num_answers=site.num_answers)
            answers = load.end()
        with site.load("control", fleet) as load:
            more = load.num_answers + site.num_answers // 20
            unwaited = moves_of(fleet, load, waits=False, num_answers=more)
            control = load.end()
    check(answers)
    seconds = sorted(it.returned - it.begun for it in moves[1:])
    unit = f"s until all of {NUM_REPLICAS} replicas have confirmed, {len(seconds)} promotions"
    site.sheet.record("cluster.promote.p50_s", [percentile(seconds, 50)], unit=unit)
    site.sheet.record("cluster.promote.p99_s", [percentile(seconds, 99)], unit=unit, goal="<= 1")
    unit = f"old answers of {len(answers)} after `promote --wait`"
    site.count("promote.stale", len(stale(answers, moves)), "<= 0", unit)
    unit = f"old answers of {len(control)} after promotions without the wait (control)"
    site.count("promote.stale.without_wait", len(stale(control, unwaited)), ">= 1", unit)


def polling_load(site: Site, fleet: Fleet) -> None:
    """Record the CPU time of PostgreSQL for one replica that polls and beats."""
    before = database_seconds(site.postgres)
    time.sleep(IDLE_S)
    used = database_seconds(site.postgres) - before
    unit = "ms of PostgreSQL's CPU time per second and replica, at 20 looks a second"
    site.count("polling.cpu_ms", 1000 * used / IDLE_S / len(fleet.places), None, unit)


def database_seconds(postgres: PostgresServer) -> float:
    """Return the CPU seconds of PostgreSQL's processes so far."""
    pid = int((postgres.socket_folder / "data" / "postmaster.pid").read_text().split()[0])
    server = psutil.Process(pid)
    times = [it.cpu_times() for it in (server, *server.children(recursive=True))]
    return sum(it.user + it.system for it in times)


def kills(site: Site) -> None:
    """Kill a replica with SIGKILL, with retries and without them."""
    with site.fleet("kill") as fleet:
        for name, changed in (("", str), (".without_retry", without_retries)):
            with site.load(f"kill{name}", fleet, changed) as load:
                killed_at = time.monotonic()
                fleet.running[0].process.kill()
                time.sleep(WATCHED_S)
                answers = load.end()
            check(answers)
            lost = failed(answers)
            after = [it for it in answers if killed_at <= it.ended <= killed_at + WATCHED_S]
            unit = f"lost of {len(after)} requests in the {WATCHED_S:g} s after kill -9"
            if not name:
                site.count("faults.kill.lost", len(lost), "<= 0", unit)
            else:
                site.count(f"faults.kill.lost{name}", len(lost), ">= 1", f"{unit} (control)")
                share = len(lost) / max(1, len(after))
                site.count(f"faults.kill.errors{name}", share, "<= 0.01", "of these requests")
                seconds = max((it.ended - killed_at for it in lost), default=0.0)
                site.count(f"faults.kill.errors_for_s{name}", seconds, "<= 5", "s")
            fleet.start(0)


def outages(site: Site) -> None:
    """Restart PostgreSQL as after a crash."""
    with (
        site.fleet("outage", registry_lease_s=LONG_LEASE_S) as fleet,
        site.load("outage", fleet) as load,
    ):
        site.postgres.restart()
        time.sleep(WATCHED_S)
        moves = [promote(fleet, 2, waits=True)]
        time.sleep(WATCHED_S)
        answers = load.end()
    check(answers)
    after = [it for it in answers if it.started > moves[0].returned]
    unit = f"lost of {len(answers)} requests around a restart of PostgreSQL"
    site.count("faults.postgres.lost", len(failed(answers)), "<= 0", unit)
    unit = f"old answers of {len(after)} after a promotion after the restart"
    site.count("faults.postgres.stale", len(stale(after, moves)), "<= 0", unit)


def store_outages(site: Site) -> None:
    """Let the object store hang: versions in memory answer, and a version that is not waits."""
    with object_store() as store:
        os.environ.update(store.environment)
        location = f"s3://{store.create_bucket()}/tasks"
        with (
            site.fleet("store", blobs=location, default_deadline_ms=STORE_DEADLINE_MS) as fleet,
            site.load("store", fleet) as load,
        ):
            store.process.send_signal(signal.SIGSTOP)
            time.sleep(WATCHED_S)
            promoted_at = time.monotonic()
            move = promote(fleet, 2, waits=False)
            time.sleep(WATCHED_S)
            store.process.send_signal(signal.SIGCONT)
            back_at = time.monotonic()
            time.sleep(STORE_RETURNS_S + WATCHED_S)
            answers = load.end()
    check(answers)
    held = [it for it in answers if it.ended < promoted_at]
    unit = f"lost of {len(held)} requests for a version in memory, before and in an outage of S3"
    site.count("faults.s3.lost", len(failed(held)), "<= 0", unit)
    blocked = [it for it in answers if promoted_at <= it.started < back_at]
    unit = (
        f"lost of {len(blocked)} requests for a version that S3 alone has, in the outage (control)"
    )
    site.count("faults.s3.lost.not_in_memory", len(failed(blocked)), ">= 1", unit)
    after = [it for it in answers if it.started > back_at + STORE_RETURNS_S]
    unit = f"lost of {len(after)} requests from {STORE_RETURNS_S:g} s after the outage"
    site.count("faults.s3.lost.after", len(failed(after)), "<= 0", unit)
    unit = f"old answers of {len(after)} requests from {STORE_RETURNS_S:g} s after the outage"
    site.count("faults.s3.stale", len(stale(after, [move])), "<= 0", unit)


def partitions(site: Site) -> None:
    """Cut a replica off from the registry, with leases and without them."""
    kinds: dict[str, dict[str, int]] = {"": {"registry_lease_s": LEASE_S}, ".without_lease": {}}
    for name, settings in kinds.items():
        with (
            site.fleet(f"partition{name}", blobs="", **settings) as fleet,
            site.load(f"partition{name}", fleet) as load,
        ):
            fleet.wires[0].cut()
            moves = [promote(fleet, 2, waits=True, seconds=4 * LEASE_S)]
            time.sleep(WATCHED_S)
            fleet.wires[0].mend()
            time.sleep(WATCHED_S)
            answers = load.end()
        check(answers)
        record_partition(site, name, answers, moves)


def record_partition(
    site: Site, name: str, answers: Sequence[Answered], moves: Sequence[Move]
) -> None:
    """Record what one partition did."""
    after = [it for it in answers if it.started > moves[0].returned]
    num_old = len(stale(after, moves))
    unit = f"old answers of {len(after)} after a promotion past a replica that was cut off"
    if name:
        site.count(f"faults.partition.stale{name}", num_old, ">= 1", f"{unit} (control)")
        return
    site.count("faults.partition.stale", num_old, "<= 0", unit)
    unit = f"lost of {len(answers)} requests around a partition"
    site.count("faults.partition.lost", len(failed(answers)), "<= 0", unit)
    seconds = moves[0].returned - moves[0].begun
    unit = f"s that the promotion waited, with a lease of {LEASE_S} s"
    site.count("faults.partition.wait_s", seconds, None, unit)


def rolling(site: Site) -> None:
    """Restart all replicas one by one; the control neither drains nor retries."""
    for name, drain_delay_s, changed in (("", 3, str), (".control", 0, without_retries)):
        with (
            site.fleet(f"rolling{name}", drain_delay_s=drain_delay_s) as fleet,
            site.load(f"rolling{name}", fleet, changed) as load,
        ):
            for index in range(NUM_REPLICAS):
                fleet.restart(index)
                time.sleep(WATCHED_S / 2)
            answers = load.end()
        check(answers)
        unit = f"failed of {len(answers)} requests around restarts of {NUM_REPLICAS} replicas"
        goal = ">= 1" if name else "<= 0"
        note = " without drain delay and retries (control)" if name else ""
        site.count(f"rolling.failed{name}", len(failed(answers)), goal, unit + note)


def check(answers: Sequence[Answered]) -> None:
    """End the benchmark if an answer is wrong."""
    wrong = [it for it in answers if not it.is_right]
    if wrong:
        raise SystemExit(f"{len(wrong)} answers are wrong: {wrong[0]}")
    took = [it.ended - it.started for it in answers]
    print(f"{len(answers)} answers, none wrong; median {1000 * statistics.median(took):.1f} ms")


PARTS: dict[str, Callable[[Site], None]] = {
    "promote": promotions,
    "kill": kills,
    "postgres": outages,
    "s3": store_outages,
    "partition": partitions,
    "rolling": rolling,
}


if __name__ == "__main__":
    main()
