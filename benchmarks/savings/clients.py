"""Clients of the measured systems: one attempt per request, and every answer checked."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx

from benchmarks.harness.makers import LABELS
from benchmarks.harness.open_loop import LoadClient
from benchmarks.savings.systems import Started
from nunatak_client import AsyncClient, Client, ConnectionFailedError, InvalidResponseError

TIMEOUT_S = 60.0
FIRST_ANSWER_S = 300.0
"""Allowed for the first answer of our server, which loads the tasks: five full models are 6 GB."""


class OurClient:
    """Uses the Python client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        if len(tasks) == 1:
            await self._client.predict(tasks[0], text)
            return
        for result in (await self._client.predict_many(text, tasks)).results:
            result.require()


class PlainClient:
    """Sends a text to `/predict` of a baseline: one request per process, with its tasks."""

    def __init__(self, client: httpx.AsyncClient, addresses: Mapping[str, str]) -> None:
        self._client = client
        self._addresses = addresses

    async def ask(self, tasks: Sequence[str], text: str) -> None:
        await self.probabilities(tasks, text)

    async def probabilities(self, tasks: Sequence[str], text: str) -> list[list[float]]:
        """Return the probabilities of the labels, by task."""
        by_address: dict[str, list[str]] = {}
        for task in tasks:
            by_address.setdefault(self._addresses[task], []).append(task)
        found: dict[str, list[float]] = {}
        for address, its in by_address.items():
            body = json.dumps({"tasks": its, "text": text})
            headers = {"content-type": "application/json"}
            try:
                response = await self._client.post(
                    address + "/predict", content=body, headers=headers
                )
            except httpx.RequestError as error:
                raise ConnectionFailedError(f"no answer from {address}: {error!r}") from error
            if response.status_code != HTTPStatus.OK:
                raise InvalidResponseError(f"{address} answered {response.status_code}")
            found |= dict(zip(its, response.json()["results"], strict=True))
        return [found[task] for task in tasks]


@asynccontextmanager
async def client_of(started: Started) -> AsyncGenerator[LoadClient]:
    """Yield a client that sends requests to this system as its users would."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    if started.system.is_ours:
        (address,) = set(started.addresses.values())
        transport = httpx.AsyncHTTPTransport(limits=limits)
        async with AsyncClient(
            address, timeout_s=TIMEOUT_S, retries=0, transport=transport
        ) as ours:
            yield OurClient(ours)
        return
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        yield PlainClient(client, started.addresses)


def answers(started: Started, tasks: Sequence[str], text: str) -> list[list[float]]:
    """Return the answers of a system, in one shape for all systems, for comparison."""
    if started.system.is_ours:
        (address,) = set(started.addresses.values())
        with Client(address) as client:
            results = client.predict_many(text, tasks, top_k=len(LABELS), deadline_s=FIRST_ANSWER_S)
            given = [{it.label: it.score for it in results[task].scores} for task in tasks]
        return [[scores[label] for label in LABELS] for scores in given]

    async def ask() -> list[list[float]]:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            return await PlainClient(client, started.addresses).probabilities(tasks, text)

    return asyncio.run(ask())
