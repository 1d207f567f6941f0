"""Short forms of the campaigns in benchmarks/cluster: real processes, PostgreSQL and HAProxy."""

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from doubles.fleets import (
    Fleet,
    failed,
    loaded,
    moves_of,
    promote,
    running_fleet,
    stale,
    without_retries,
)
from doubles.lifecycles import LIMIT_S
from doubles.postgres import PostgresServer
from doubles.proxies import PROXIES
from nunatak_contract.errors import NunatakError

LEASE_S = 6
AFTER_S = 2.0
"""Time of load after an event."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("haproxy" not in PROXIES, reason="HAProxy is not installed (apt-get)"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Generator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet") / "site"
    with running_fleet(
        folder, postgres, replicas=2, registry_lease_s=LEASE_S, drain_delay_s=3
    ) as running:
        yield running


def test_no_answer_is_of_the_old_version_after_a_promotion_that_waits(
    fleet: Fleet, tmp_path: Path
) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        moves = moves_of(fleet, load, waits=True, num_answers=1500)
        answers = load.end()

    assert failed(answers) == []
    assert all(it.is_right for it in answers)
    assert len({it.replica for it in answers}) == 2
    assert len({it.version for it in answers}) > 2
    assert stale(answers, moves) == []


def test_a_replica_that_has_lost_its_registry_gives_no_old_answer(
    fleet: Fleet, tmp_path: Path
) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        load.wait_for(100)
        fleet.wires[0].cut()
        moves = [promote(fleet, 1, waits=True), promote(fleet, 2, waits=True)]
        time.sleep(AFTER_S)
        fleet.wires[0].mend()
        wait_for_both(fleet)
        time.sleep(AFTER_S)
        answers = load.end()

    assert failed(answers) == []
    assert stale([it for it in answers if it.started > moves[0].returned], moves) == []
    assert {it.replica for it in answers if it.started > moves[1].returned} == {"r0", "r1"}


def test_a_killed_replica_loses_no_request(fleet: Fleet, tmp_path: Path) -> None:
    for changed, may_fail in ((str, False), (without_retries, True)):
        with loaded(tmp_path / f"proxy-{may_fail}", fleet, changed=changed) as load:
            load.wait_for(200)
            fleet.running[0].process.kill()
            time.sleep(AFTER_S)
            answers = load.end()
        fleet.start(0)

        assert bool(failed(answers)) is may_fail
        assert all(it.is_right for it in answers)


def test_a_rolling_restart_fails_no_request(fleet: Fleet, tmp_path: Path) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        for index in range(2):
            fleet.restart(index)
            wait_for_both(fleet)
        time.sleep(AFTER_S)
        answers = load.end()

    assert failed(answers) == []
    assert {it.replica for it in answers} == {"r0", "r1"}


def test_a_restart_of_postgresql_fails_no_request(
    fleet: Fleet, postgres: PostgresServer, tmp_path: Path
) -> None:
    with loaded(tmp_path / "proxy", fleet) as load:
        load.wait_for(100)
        postgres.restart()
        time.sleep(AFTER_S)
        moves = [promote(fleet, 3, waits=True)]
        time.sleep(AFTER_S)
        answers = load.end()

    assert failed(answers) == []
    assert stale([it for it in answers if it.started > moves[0].returned], moves) == []


def wait_for_both(fleet: Fleet) -> None:
    """Wait until both replicas are listed with a live row and follow."""
    ends_at = time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < ends_at
        try:
            listed = fleet.registry.replicas.listing().replicas
        except NunatakError:
            listed = ()
        if len(listed) == 2 and all(it.is_current and it.load.ready for it in listed):
            return
        time.sleep(0.05)
