"""Registries whose index is backed up and restored under processes that have it open, and callers.

The callers ask a server all the time, and recognize the version that computed each answer.
"""

import asyncio
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from doubles.postgres import PostgresServer, find_binaries
from doubles.tasks import LABELS, logits_alone
from nunatak_model import Backbone

TEXT = "where is my parcel?"
SEEDS = {"old": 11, "lost": 22, "new": 33}
NUM_CALLERS = 4
NOTICED_WITHIN_S = 1.0
"""The promise of docs/registry.md."""
WATCHED_S = 0.5


class FileSite:
    """A registry on SQLite, restored by a rename, or through SQLite itself."""

    def __init__(self, folder: Path, *, is_renamed: bool) -> None:
        self.location = str(folder / "registry")
        self._index = folder / "registry" / "index.sqlite3"
        self._folder = folder
        self._is_renamed = is_renamed

    def back_up(self, name: str) -> None:
        with (
            closing(sqlite3.connect(self._index)) as source,
            closing(sqlite3.connect(self._folder / name)) as target,
        ):
            source.backup(target)

    def restore(self, name: str) -> None:
        if self._is_renamed:
            copy = self._index.with_name("incoming")
            shutil.copy(self._folder / name, copy)
            copy.replace(self._index)
            return
        with (
            closing(sqlite3.connect(self._folder / name)) as source,
            closing(sqlite3.connect(self._index)) as target,
        ):
            source.backup(target)


class PostgresSite:
    """A registry on PostgreSQL, whose tables are put back by `pg_restore`."""

    def __init__(self, folder: Path, server: PostgresServer, *, blobs: str | None = None) -> None:
        url = server.create_database()
        self.location = f"{url}&blobs={blobs or folder / 'blobs'}"
        self._folder = folder
        self._url = url.replace("+psycopg", "")

    def back_up(self, name: str) -> None:
        self._run("pg_dump", "--format=custom", "--file", str(self._folder / name), self._url)

    def restore(self, name: str) -> None:
        options = ("--clean", "--if-exists", "--single-transaction", "--dbname", self._url)
        self._run("pg_restore", *options, str(self._folder / name))

    def _run(self, program: str, *arguments: str) -> None:
        binaries = find_binaries()
        assert binaries is not None
        subprocess.run([str(binaries / program), *arguments], check=True, timeout=60)  # noqa: S603 - PostgreSQL's own


RestoreSite = FileSite | PostgresSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One answer: its time, the version it names, and the version that computed it."""

    asked_at: float
    version: int
    content: str


def oracle(backbone: Backbone) -> dict[str, list[float]]:
    return {name: logits_alone(backbone, [TEXT], seed=seed)[0] for name, seed in SEEDS.items()}


async def call(
    client: httpx.AsyncClient,
    expected: dict[str, list[float]],
    seen: list[Seen],
    *,
    pause_s: float = 0.0,
) -> None:
    """Ask until cancelled, with a pause between an answer and the next request."""
    body = {"inputs": TEXT, "parameters": {"function_to_apply": "none"}}
    while True:
        asked_at = time.monotonic()
        answer = (await client.post("/v1/tasks/tone/predict", json=body)).raise_for_status()
        found = answer.json()
        assert answer.headers["x-task-version"] == f"tone/{found['version']}"
        scores = {item["label"]: item["score"] for item in found["outputs"]}
        (content,) = (
            name
            for name, logits in expected.items()
            if [scores[label] for label in LABELS] == pytest.approx(logits, abs=1e-4)
        )
        seen.append(Seen(asked_at=asked_at, version=found["version"], content=content))
        await asyncio.sleep(pause_s)


async def watch(
    callers: "Sequence[asyncio.Task[None]]", seen: Sequence[Seen], after: float
) -> None:
    """Wait until requests from well after a moment have answers."""
    async with asyncio.timeout(30):
        while not seen or seen[-1].asked_at < after + WATCHED_S:
            await asyncio.sleep(0.01)
            for caller in callers:
                assert not caller.done(), caller.exception()


def stale(seen: list[Seen], restored_at: float) -> list[Seen]:
    """Return the answers of versions that the registry did not have at the time of the request."""
    return [
        it for it in seen if it.content == "lost" and it.asked_at > restored_at + NOTICED_WITHIN_S
    ]
