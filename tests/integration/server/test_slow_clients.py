"""A real server with slow clients of every kind, next to normal clients."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from doubles.events import catch_from
from doubles.serving import make_settings, serving_tone
from doubles.slow_clients import (
    BEHAVIOURS,
    HOLDING,
    Behaviour,
    be_slow_once,
    normal_traffic,
    slow_clients,
    slow_process,
)
from doubles.tasks import publish_tiny_task
from nunatak_server.processes import serving
from nunatak_server.settings import ServerSettings

publish = publish_tiny_task
RECEIVE_S = 1
# Head and body have separate time limits, and the machine may be busy.
PATIENCE_S = 15.0
NUM_SLOW, NUM_NORMAL = 200, 200
MAX_CONNECTIONS, NUM_HOLDING = 256, 280
HOLD_S = 30.0


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    return make_settings(receive_timeout_s=RECEIVE_S)


def test_every_slow_connection_is_closed_in_time(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_from(("uvicorn.error",), caplog, monkeypatch)
    still_open = {it.__name__ for it in BEHAVIOURS}

    async def be_slow(behave: Behaviour) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(be_slow_once(address, behave), timeout=PATIENCE_S)
            still_open.remove(behave.__name__)

    async def scenario() -> None:
        await asyncio.gather(*map(be_slow, BEHAVIOURS))
        await normal_traffic(address, num_requests=1, at_once=1)

    asyncio.run(scenario())

    assert still_open == set()
    assert [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR] == []


@pytest.mark.slow
def test_slow_clients_cost_normal_ones_nothing(address: str) -> None:
    async def scenario() -> None:
        async with slow_clients(address, NUM_SLOW) as tasks:
            tally = await normal_traffic(address, num_requests=NUM_NORMAL, at_once=4)
            assert [task.exception() for task in tasks if task.done()] == []
        assert (tally.answered, tally.failures) == (NUM_NORMAL, ())

    asyncio.run(scenario())
    assert httpx.get(f"{address}/readyz").status_code == 200


def p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100]


@pytest.mark.slow
def test_more_connections_than_the_server_may_hold_cost_a_normal_caller_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process opens idle, kept and upgrading connections again when they end."""
    monkeypatch.setattr(serving, "connection_limits", lambda: (MAX_CONNECTIONS, MAX_CONNECTIONS))

    def ask(address: str) -> list[float]:
        tally = asyncio.run(normal_traffic(address, num_requests=NUM_NORMAL, at_once=1))
        assert (tally.answered, tally.failures) == (NUM_NORMAL, ())
        return list(tally.seconds)

    with serving_tone(tmp_path) as address:
        alone = ask(address)
        with slow_process(address, NUM_HOLDING, HOLDING):
            beside, ends_at = list[float](), time.monotonic() + HOLD_S
            while time.monotonic() < ends_at:
                beside += ask(address)
        # Before and after, because other work on this machine comes and goes.
        alone = max(p99(alone), p99(ask(address)))

    assert p99(beside) <= 3 * alone
