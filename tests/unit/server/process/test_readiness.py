import pytest

from nunatak_server.errors import DrainingError, NotReadyError
from nunatak_server.process.readiness import Readiness, State


def test_a_process_takes_requests_only_while_it_is_ready() -> None:
    readiness = Readiness()
    with pytest.raises(NotReadyError, match="starting"):
        readiness.check()

    readiness.move_to(State.READY)
    readiness.check()

    readiness.move_to(State.DRAINING)
    with pytest.raises(DrainingError):
        readiness.check()


def test_a_failed_process_stays_failed() -> None:
    readiness = Readiness()
    readiness.move_to(State.FAILED)

    readiness.move_to(State.READY)

    with pytest.raises(NotReadyError, match="failed"):
        readiness.check()
