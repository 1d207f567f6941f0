"""A server that freezes under an open and under a closed loop of Locust."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Generator

import pytest

from doubles.measured import MEMORY, SERVER
from nunatak_loadtest.process import run_locust

ANSWER = json.dumps({"task": "tone", "version": 1, "outputs": [{"label": "calm", "score": 0.9}]})
FACTS = {"/info": SERVER.model_dump_json(), "/v1/memory": MEMORY.model_dump_json()}
SECONDS, FREEZE_S = 3.0, 0.8


def reply(body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


class _Stub:
    def __init__(self, *, freeze_at_s: float, freeze_s: float) -> None:
        self._freeze_at_s = freeze_at_s
        self._freeze_s = freeze_s
        self._is_fresh = True
        self._connections = set[asyncio.Task[None] | None]()
        self.loop = asyncio.new_event_loop()
        self.is_over = asyncio.Event()
        self.ready = threading.Event()
        self.port = 0

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.is_over.wait()
        server.close()
        left = [task for task in self._connections if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                    method, path, *_ = head.split()
                    if method == "get":
                        writer.write(reply(FACTS[path]))
                        continue
                    await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
                    if self._is_fresh:
                        # Blocks the event loop, so that no caller gets an answer, as from a stopped
                        # process.
                        self.loop.call_later(self._freeze_at_s, time.sleep, self._freeze_s)
                        self._is_fresh = False
                    writer.write(reply(ANSWER))
        finally:
            writer.close()


@contextlib.contextmanager
def freezing_server(*, freeze_at_s: float, freeze_s: float) -> Generator[str]:
    """Yield the server's address; the freeze begins `freeze_at_s` after the first prediction."""
    stub = _Stub(freeze_at_s=freeze_at_s, freeze_s=freeze_s)
    thread = threading.Thread(target=stub.loop.run_until_complete, args=(stub.run(),))
    thread.start()
    stub.ready.wait()
    try:
        yield f"http://127.0.0.1:{stub.port}"
    finally:
        stub.loop.call_soon_threadsafe(stub.is_over.set)
        thread.join()
        stub.loop.close()


@pytest.mark.slow
def test_a_frozen_server_is_seen_by_an_open_loop_and_hidden_by_a_closed_one() -> None:
    found = dict[str, tuple[float, float]]()
    for name, users, rate in (("open", None, 60.0), ("closed", 2, None)):
        with freezing_server(freeze_at_s=SECONDS + 1, freeze_s=FREEZE_S) as server:
            report = run_locust(
                "verdicts",
                server=server,
                tasks=["guard"],
                users=users,
                rate_per_s=rate,
                seconds=SECONDS,
            )
        assert report.overall.failures == 0
        found[name] = report.overall.p95_ms, report.overall.max_ms

    assert min(most for _, most in found.values()) > 500 * FREEZE_S
    assert found["open"][0] > 250 * FREEZE_S > found["closed"][0]
