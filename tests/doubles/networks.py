"""A scripted network, and both clients behind one interface."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import httpx
from pydantic import JsonValue

from nunatak_client import AsyncClient, Client, RetryPolicy

URL = "http://tests.invalid"

AnswerT = TypeVar("AnswerT")
Answer = AnswerT | Awaitable[AnswerT]
Outcome = httpx.Response | Exception


@dataclass
class Network:
    """Gives the scripted outcomes in turn, records requests, and moves the clock at each sleep."""

    outcomes: list[Outcome]
    requests: list[httpx.Request] = field(default_factory=list[httpx.Request])
    sleeps: list[float] = field(default_factory=list[float])
    now_s: float = 100.0

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        # A response belongs to the client that read it, but cases share one response.
        return httpx.Response(outcome.status_code, headers=outcome.headers, content=outcome.content)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def clock(self) -> float:
        return self.now_s


@dataclass
class Face:
    """One of the two clients behind a blocking interface, so that each law is written once."""

    open: Callable[[Network, RetryPolicy], Client | AsyncClient]

    def run(
        self, network: Network, use: Callable[[Client | AsyncClient], Answer[AnswerT]]
    ) -> AnswerT:
        client = self.open(network, RetryPolicy(jitter=lambda: 1.0))
        if isinstance(client, AsyncClient):
            return asyncio.run(_await_answer(client, use))
        with client:
            answer = use(client)
        assert not isinstance(answer, Awaitable)
        return answer


async def _await_answer(
    client: AsyncClient, use: Callable[[Client | AsyncClient], Answer[AnswerT]]
) -> AnswerT:
    async with client:
        answer = use(client)
        return await cast("Awaitable[AnswerT]", answer)


def open_blocking(network: Network, policy: RetryPolicy) -> Client:
    return Client(
        URL,
        retries=policy,
        transport=httpx.MockTransport(network.handle),
        sleep=network.sleep,
        clock=network.clock,
    )


def open_asyncio(network: Network, policy: RetryPolicy) -> AsyncClient:
    return AsyncClient(
        URL,
        retries=policy,
        transport=httpx.MockTransport(network.handle),
        sleep=network.sleep_async,
        clock=network.clock,
    )


def answer(body: JsonValue, status: int = 200, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named)


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    return answer({"code": code, "status": status, "detail": "no"}, status, **headers)
