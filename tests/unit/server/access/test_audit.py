"""Laws of the file of the audit log."""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_server.access.audit import AuditLog
from nunatak_server.http.problems import code_of
from nunatak_server.processes.serving import WAITING


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


KNOWN: dict[str, object] = {
    "request_id": "r1",
    "by": "key ops",
    "act": "PUT /a",
    "object": {},
    "body": None,
}


async def acted(path: Path, deed: Callable[[], None] = lambda: None, **known: object) -> None:
    async with AuditLog(path).act(KNOWN | known, code_of):
        deed()


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NunatakError("shared_port", processes=2), "shared_port"),
        (ValueError(), "internal_error"),
        (asyncio.CancelledError(), "unknown"),
    ],
    ids=["known", "unforeseen", "cut short"],
)
def test_a_failed_act_has_the_code_of_its_answer(
    path: Path, error: BaseException, outcome: str
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        asyncio.run(acted(path, fail))

    assert [it["outcome"] for it in lines_of(path)] == ["begun", outcome]


def test_a_line_after_one_that_was_cut_short_stands_alone(path: Path) -> None:
    path.write_bytes(b'{"at": "2026')

    asyncio.run(acted(path, object={"task": "a\n\u2028\ud800"}))

    cut, *whole = path.read_bytes().split(b"\n")
    assert cut == b'{"at": "2026'
    assert [json.loads(it)["outcome"] for it in whole if it] == ["begun", "done"]


def test_an_act_that_is_done_keeps_its_outcome_without_its_second_line(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rotate() -> None:
        path.rename(path.with_name("rotated"))
        path.mkdir()

    asyncio.run(acted(path, rotate))

    assert "r1" in caplog.text
    assert ": done" in caplog.text


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing/folder", "/dev/null"])
def test_a_place_that_takes_no_lines_is_refused_at_the_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)

    with raises("audit_log_failed", match="must name a regular file in a folder that is there"):
        AuditLog(path)


async def test_a_disk_that_hangs_keeps_no_server(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_free = os.pread, threading.Event()

    def read_late(descriptor: int, num_bytes: int, place: int) -> bytes:
        is_free.wait(10)
        return read(descriptor, num_bytes, place)

    async def act() -> None:
        async with log.act(KNOWN, code_of):
            pass

    log = AuditLog(path)
    await act()
    monkeypatch.setattr(os, "pread", read_late)
    acting = asyncio.create_task(act())
    await asyncio.sleep(0.05)
    log.close()
    is_known = any(it.name.startswith(WAITING) for it in threading.enumerate())
    is_free.set()
    await asyncio.gather(acting, return_exceptions=True)

    assert is_known, "the end of a server would wait for the thread"
