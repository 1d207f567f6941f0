from doubles.refusals import raises
from doubles.serving import ManualClock
from nunatak_server.catalog.following import RegistryLease
from nunatak_server.predict.readiness import Readiness, State


def test_a_process_takes_requests_only_while_it_is_ready() -> None:
    readiness = Readiness()
    with raises("not_ready", match="starting"):
        readiness.check()

    readiness.move_to(State.READY)
    readiness.check()

    readiness.move_to(State.DRAINING)
    with raises("draining"):
        readiness.check()


def test_a_failed_process_stays_failed() -> None:
    readiness = Readiness()
    readiness.move_to(State.FAILED)

    readiness.move_to(State.READY)

    with raises("not_ready", match="failed"):
        readiness.check()


def test_a_process_that_gets_nothing_done_is_not_ready_until_it_does() -> None:
    stalled_s = 0.0
    readiness = Readiness(stalled_s=lambda: stalled_s, max_stall_s=60)
    readiness.move_to(State.READY)

    stalled_s = 61.0
    with raises("not_ready", match="no batch has ended"):
        readiness.check_ready()
    assert not readiness.is_ready
    readiness.check()

    stalled_s = 0.0
    readiness.check_ready()
    assert readiness.is_ready


def test_a_process_whose_lease_has_ended_takes_no_requests_until_it_has_a_new_one() -> None:
    clock = ManualClock()
    lease = RegistryLease(seconds=10, clock=clock)
    readiness = Readiness(lease=lease)
    readiness.move_to(State.READY)
    assert not readiness.takes_requests, "there was no lease yet"
    lease.renew(0.0)
    readiness.check()

    clock.now = 10.0
    for state in (State.READY, State.LEAVING):
        readiness.move_to(state)
        assert not readiness.is_ready
        assert not readiness.takes_requests
        with raises("not_ready", match="its lease has ended"):
            readiness.check()

    lease.renew(5.0)
    readiness.move_to(State.READY)
    readiness.check()
