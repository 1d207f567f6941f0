"""Laws of both clients: every case runs through the blocking and the asyncio one."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import httpx
import numpy as np
import pandas as pd
import pytest
from pydantic import JsonValue

from nunatak_client import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailedError,
    DeadlineExceededError,
    Input,
    InvalidInputError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    RetryPolicy,
    UnavailableError,
)

URL = "http://tests.invalid"
AnswerT = TypeVar("AnswerT")
Answer = AnswerT | Awaitable[AnswerT]
Outcome = httpx.Response | Exception
PREDICTION: dict[str, JsonValue] = {
    "task": "tone",
    "version": 3,
    "outputs": [{"label": "urgent", "score": 0.9}],
}


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

    kind: type[Client | AsyncClient]

    def open(self, network: Network) -> Client | AsyncClient:
        options: dict[str, Any] = {
            "retries": RetryPolicy(jitter=lambda: 1.0),
            "transport": httpx.MockTransport(network.handle),
            "sleep": network.sleep if self.kind is Client else network.sleep_async,
            "clock": network.clock,
        }
        return self.kind(URL, **options)

    def run(
        self, network: Network, use: Callable[[Client | AsyncClient], Answer[AnswerT]]
    ) -> AnswerT:
        client = self.open(network)
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


def answer(body: JsonValue, status: int = 200, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named)


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    return answer({"code": code, "status": status, "detail": "no"}, status, **headers)


def told(*labels: str, **more: dict[str, JsonValue]) -> Outcome:
    outputs: JsonValue = [[{"label": label, "score": 0.9}] for label in labels]
    results: list[JsonValue] = [{**PREDICTION, "reference": "tone", "outputs": outputs}]
    results.extend({**it, "reference": reference} for reference, it in more.items())
    return answer({"results": results})


def all_of(parts: Iterator[AnswerT] | AsyncIterator[AnswerT]) -> Answer[list[AnswerT]]:
    """Collect what either client yields."""

    async def collected(coming: AsyncIterator[AnswerT]) -> list[AnswerT]:
        return [it async for it in coming]

    return list(parts) if isinstance(parts, Iterator) else collected(parts)


@pytest.fixture(params=[Client, AsyncClient])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(kind=request.param)


def test_predict_all_divides_what_the_server_refuses_and_keeps_the_order(face: Face) -> None:
    texts = [f"text {number}" for number in range(5)]

    refused = refusal(422, "request_too_large")
    network = Network([refused, told("0", "1"), refused, told("2"), told("3", "4")])

    found = face.run(network, lambda client: all_of(client.predict_all(iter(texts), ["tone"])))

    asked = [json.loads(request.content)["inputs"] for request in network.requests]
    assert asked == [texts, texts[:2], texts[2:], texts[2:3], texts[3:]]
    assert [part for part, _ in found] == [texts[:2], texts[2:3], texts[3:]]  # pyrefly: ignore[not-iterable]
    assert [label for _, it in found for label in it["tone"].labels] == list("01234")  # pyrefly: ignore[not-iterable]


def test_predict_all_raises_what_refuses_a_single_input_with_its_place(face: Face) -> None:
    refused = answer(
        {"code": "empty_text", "status": 422, "detail": "input 0: empty", "position": 0}, 422
    )
    network = Network([refused, told("0"), refused])

    with pytest.raises(InvalidRequestError, match=r"^input 1: empty$") as caught:
        face.run(network, lambda client: all_of(client.predict_all(["a", ""], ["tone"])))

    assert (caught.value.position, caught.value.detail) == (1, "empty")
    assert [json.loads(it.content)["inputs"] for it in network.requests] == [["a", ""], ["a"], [""]]


@pytest.mark.parametrize("place", [0, 1, 7], ids=["first", "last", "outside"])
def test_predict_all_asks_alone_about_an_input_that_one_task_refuses(
    face: Face, place: int
) -> None:
    def refused(at: int) -> dict[str, JsonValue]:
        detail = f"input {at}: no"
        return {"error": {"code": "x", "status": 422, "detail": detail, "position": at}}

    answered: dict[str, JsonValue] = {**PREDICTION, "outputs": [PREDICTION["outputs"]]}
    alone = [told("0", names=answered), told("1", names=refused(0))]
    network = Network([told("0", "1", names=refused(place)), *alone])

    found = face.run(
        network, lambda client: all_of(client.predict_all(["a", "b"], ["tone", "names"]))
    )

    assert [part for part, _ in found] == [["a"], ["b"]]  # pyrefly: ignore[not-iterable]
    assert [it["tone"].labels for _, it in found] == [("0",), ("1",)]  # pyrefly: ignore[not-iterable]
    problem = found[1][1]["names"].error  # pyrefly: ignore[bad-index]
    assert problem is not None
    assert (problem.position, problem.detail) == (1, "input 1: no")


def test_predict_all_answers_what_stands_before_an_input_of_another_kind(face: Face) -> None:
    network = Network([told("0")])
    mixed = cast("list[Input]", ["a", 3])

    with pytest.raises(InvalidInputError, match=r"^input 1: an input must be a text"):
        face.run(network, lambda client: all_of(client.predict_all(mixed, ["tone"])))

    assert len(network.requests) == 1


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_closed_client_says_so_and_may_be_closed_again(
    client: type[Client | AsyncClient],
) -> None:
    async def ask() -> None:
        opened = client(URL)
        for _ in range(2):
            closing = opened.close() if isinstance(opened, Client) else opened.aclose()
            if closing is not None:
                await closing
        asked = opened.info()
        if isinstance(asked, Awaitable):
            await asked

    with pytest.raises(InvalidInputError, match="this client is closed; open another"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("predict_many", ("Come.", "tone")),
        ("predict_many", ("Come.", ())),
        ("judge", ("guard", ("a text", "its pair"))),
        ("judge", ("guard",)),
    ],
)
def test_arguments_of_another_meaning_are_refused_before_a_request(
    face: Face, method: str, arguments: tuple[object, ...]
) -> None:
    with pytest.raises(InvalidInputError, match="list"):
        face.run(Network([]), lambda client: getattr(client, method)(*arguments))


@pytest.mark.parametrize(
    "options",
    [
        *({"deadline_s": it} for it in (float("inf"), float("nan"), 1e12, "5")),
        *({"routing_key": it} for it in ("J\u00fcrgen", "a\nb", 5)),
    ],
)
def test_an_option_that_cannot_be_sent_is_refused_before(
    face: Face, options: dict[str, Any]
) -> None:
    network = Network([])
    with pytest.raises(InvalidInputError):
        face.run(network, lambda client: client.predict("tone", "Come.", **options))
    assert not network.requests


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        pytest.param(answer({"status": "ready"}), True, id="ready"),
        pytest.param(refusal(503, "not_ready", retry_after="1"), False, id="not-yet"),
        pytest.param(httpx.ConnectError("refused"), False, id="nobody-there"),
    ],
)
def test_readiness_is_asked_once_and_never_raises(
    face: Face, outcome: Outcome, *, expected: bool
) -> None:
    network = Network([outcome])

    assert face.run(network, lambda client: client.is_ready()) is expected
    assert network.sleeps == []


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("retries", ["3", 1.5, None, -1, True, [2]])
def test_retries_of_another_kind_are_refused_at_once(
    kind: Callable[..., object], retries: object
) -> None:
    with pytest.raises(InvalidInputError, match="retries must be a RetryPolicy"):
        kind(URL, retries=retries)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_refused_and_names_the_address(face: Face, status: int) -> None:
    network = Network([httpx.Response(status, headers={"location": "https://elsewhere.invalid/"})])

    with pytest.raises(ApiError, match=r"redirects to https://elsewhere\.invalid/"):
        face.run(network, lambda client: client.predict("tone", "a"))

    assert len(network.requests) == 1


@pytest.mark.parametrize("task", ["tone", "a" * 70_000], ids=["of a redirect", "of a task"])
def test_an_address_that_is_none_is_an_error_of_the_client(face: Face, task: str) -> None:
    network = Network([httpx.Response(302, headers={"location": "mailto:ann@example.org"})])

    with pytest.raises(InvalidInputError, match="an address cannot be used"):
        face.run(network, lambda client: client.predict(task, "a"))


@pytest.mark.parametrize("status", [429, 503])
def test_invited_retry_waits_at_least_as_asked(face: Face, status: int) -> None:
    network = Network([refusal(status, "overloaded", retry_after="2"), answer(PREDICTION)])

    assert face.run(network, lambda client: client.predict("tone", "a")).best.label == "urgent"
    assert network.sleeps == [2]


def test_refused_connections_are_retried_with_growing_delays_to_an_end(face: Face) -> None:
    network = Network([httpx.ConnectError("refused"), *[httpx.ConnectTimeout("slow")] * 2])

    with pytest.raises(ConnectionFailedError, match=r"tests\.invalid"):
        face.run(network, lambda client: client.predict("tone", "a"))

    assert (network.sleeps, len(network.requests)) == ([0.1, 0.2], 3)


def test_overload_that_outlasts_the_retries_says_when_to_come_back(face: Face) -> None:
    network = Network([refusal(429, "overloaded", retry_after="1") for _ in range(3)])

    with pytest.raises(OverloadedError) as caught:
        face.run(network, lambda client: client.predict("tone", "a"))

    assert caught.value.retry_after_s == 1


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        pytest.param(refusal(503, "draining"), UnavailableError, id="503-without-invitation"),
        pytest.param(refusal(500, "internal_error"), ApiError, id="500"),
        pytest.param(
            refusal(429, "overloaded", retry_after="60"), OverloadedError, id="too-long-a-wait"
        ),
        pytest.param(httpx.ReadTimeout("slow"), ConnectionFailedError, id="read-timeout"),
        pytest.param(httpx.ReadError("reset"), ConnectionFailedError, id="reset"),
        pytest.param(httpx.DecodingError("gzip"), InvalidResponseError, id="garbled"),
    ],
)
def test_what_may_have_had_an_effect_is_not_retried(
    face: Face, outcome: Outcome, expected: type[Exception]
) -> None:
    network = Network([outcome])

    with pytest.raises(expected):
        face.run(network, lambda client: client.predict("tone", "a"))

    assert network.sleeps == []


def test_deadline_spans_all_attempts(face: Face) -> None:
    network = Network([refusal(429, "overloaded", retry_after="2"), answer(PREDICTION)])

    face.run(network, lambda client: client.predict("tone", "a", deadline_s=5))

    assert [request.headers["x-deadline-ms"] for request in network.requests] == ["5000", "3000"]


def test_no_attempt_starts_after_the_deadline(face: Face) -> None:
    network = Network([refusal(429, "overloaded", retry_after="2")])

    with pytest.raises(OverloadedError):
        face.run(network, lambda client: client.predict("tone", "a", deadline_s=1))

    assert network.sleeps == []


def test_spent_deadline_sends_nothing(face: Face) -> None:
    network = Network([])

    with pytest.raises(DeadlineExceededError):
        face.run(network, lambda client: client.predict("tone", "a", deadline_s=0))


@dataclass
class TrickledBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """An answer that comes byte by byte, each after a second."""

    network: Network
    content: bytes

    def __iter__(self) -> Iterator[bytes]:
        for part in self.content:
            self.network.now_s += 1
            yield bytes((part,))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


@dataclass
class SlowNetwork(Network):
    def handle(self, request: httpx.Request) -> httpx.Response:
        found = super().handle(request)
        return httpx.Response(found.status_code, stream=TrickledBody(self, found.content))


@pytest.mark.parametrize(
    ("is_streamed", "deadline_s", "end_s"),
    [(False, 5, 105), (True, 5, 105), (False, None, 130)],
    ids=["whole", "streamed", "whole-without-a-deadline"],
)
def test_an_answer_that_comes_byte_by_byte_ends_at_the_deadline_or_after_the_timeout(
    face: Face, deadline_s: float | None, end_s: float, *, is_streamed: bool
) -> None:
    network = SlowNetwork([answer({**PREDICTION, "reference": "tone"})])

    def use(client: Client | AsyncClient) -> Answer[object]:
        if not is_streamed:
            return client.predict("tone", "a", deadline_s=deadline_s)
        return all_of(client.stream("a", ["tone"], deadline_s=deadline_s))

    with pytest.raises(ConnectionFailedError, match="in time"):
        face.run(network, use)

    assert end_s < network.now_s < end_s + 3


def test_a_stream_without_a_deadline_may_take_longer_than_the_timeout(face: Face) -> None:
    line = json.dumps({**PREDICTION, "reference": "tone"}) + "\n"
    network = SlowNetwork([httpx.Response(200, text=line)])

    found: Any = face.run(network, lambda client: all_of(client.stream("a", ["tone"])))

    assert ([it.version for it in found], network.now_s > 140) == ([3], True)


@pytest.mark.parametrize("listed", [iter, np.array, pd.Series], ids=lambda it: it.__name__)
def test_tasks_and_inputs_may_be_read_only_once(face: Face, listed: Callable[..., Any]) -> None:
    line = {**PREDICTION, "reference": "tone", "outputs": [PREDICTION["outputs"]]}
    other = {**line, "reference": "topic"}

    def two() -> Outcome:
        return answer({"results": [line, other]})

    def streamed() -> Outcome:
        lines = b"".join(json.dumps(it).encode() + b"\n" for it in (line, other))
        return httpx.Response(200, content=lines)

    def ask(name: str, outcomes: list[Outcome], num_inputs: int) -> Any:  # noqa: ANN401 - any answer
        inputs, tasks = listed(["a"] * num_inputs), listed(["tone", "topic"])

        def use(client: Client | AsyncClient) -> Answer[Any]:
            found = getattr(client, name)(inputs, tasks)
            return found if name == "predict_many" else all_of(found)

        return face.run(Network(outcomes), use)

    assert len(ask("predict_many", [two()], 1).results) == 2
    assert len(ask("stream", [streamed()], 1)) == 2
    refused = refusal(422, "request_too_large")
    assert len(ask("predict_all", [refused, two(), two()], 2)) == 2
