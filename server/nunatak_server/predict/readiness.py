"""Readiness: whether this process accepts requests."""

from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import assert_never

from nunatak_contract.errors import NunatakError
from nunatak_server.catalog.following import RegistryLease


class State(StrEnum):
    """The states of a server process, in order; every state can move to FAILED."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    """The server still accepts requests, and /readyz answers 503."""
    DRAINING = "draining"
    FAILED = "failed"


class Readiness:
    """The state of the process; only the event loop thread may use it."""

    def __init__(
        self,
        *,
        stalled_s: Callable[[], float] = lambda: 0.0,
        max_stall_s: float = inf,
        lease: RegistryLease | None = None,
        on_move: Callable[[], None] = lambda: None,
    ) -> None:
        """Start in the state STARTING.

        `stalled_s` returns the seconds in which rows have waited and no batch has ended. `on_move`
        is called after each change of the state.
        """
        self.state = State.STARTING
        self._on_move = on_move
        self._stalled_s = stalled_s
        self._max_stall_s = max_stall_s
        self._lease = lease

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY and not self._is_stalled and self._has_lease

    def move_to(self, state: State) -> None:
        """Change the state; a failed process stays failed."""
        if self.state is not State.FAILED:
            self.state = state
            self._on_move()

    @property
    def takes_requests(self) -> bool:
        return self.state in (State.READY, State.LEAVING) and self._has_lease

    def check(self, *, has_begun: bool = False) -> None:
        """Refuse a request, unless it has begun before the server drains."""
        may_end = has_begun and self.state is State.DRAINING and self._has_lease
        if not (self.takes_requests or may_end):
            self.check_ready()

    def check_ready(self) -> None:
        match self.state:
            case State.READY if self._is_stalled:
                raise NunatakError(
                    "not_ready",
                    reason=f"requests have waited for {self._max_stall_s:g} s, and no batch has "
                    "ended",
                )
            case State.READY | State.LEAVING if not self._has_lease:
                raise NunatakError(
                    "not_ready",
                    reason="its lease has ended: the registry has not answered for "
                    "NUNATAK_REGISTRY_LEASE_S",
                )
            case State.READY:
                return
            case State.STARTING:
                raise NunatakError("not_ready", reason="it is starting")
            case State.FAILED:
                raise NunatakError("not_ready", reason="it has failed")
            case State.LEAVING | State.DRAINING:
                raise NunatakError("draining")
            case _:
                assert_never(self.state)

    @property
    def _has_lease(self) -> bool:
        return self._lease is None or not self._lease.is_over

    @property
    def _is_stalled(self) -> bool:
        return self._stalled_s() > self._max_stall_s
