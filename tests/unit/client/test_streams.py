"""The client's errors for streams that break the contract."""

import httpx
import pytest

from nunatak_client import Client, ConnectionFailedError, InvalidResponseError

OUTPUTS = b'[{"label": "a", "score": 1}]'
LINE = b'{"reference": "tone", "task": "tone", "version": 3, "outputs": ' + OUTPUTS + b"}\n"


def client_of(*responses: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
    left, requests = list(responses), list[httpx.Request]()

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    transport = httpx.MockTransport(handle)
    client = Client("http://tests.invalid", transport=transport, sleep=lambda _: None)
    return client, requests


def test_a_stream_that_ends_early_is_an_error_after_what_came() -> None:
    client, _ = client_of(httpx.Response(200, content=LINE))
    results = client.stream("hello", ["tone", "intent"])

    assert next(results).require().outputs
    with pytest.raises(InvalidResponseError, match="the stream ended"):
        next(results)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"results": []}\n'])
def test_a_line_that_is_no_result_is_an_error(line: bytes) -> None:
    client, _ = client_of(httpx.Response(200, content=line))

    with pytest.raises(InvalidResponseError):
        list(client.stream("hello", ["tone"]))


def test_a_stream_is_tried_again_only_before_it_has_begun() -> None:
    busy = httpx.Response(429, headers={"retry-after": "0"}, content=b"{}")
    client, requests = client_of(busy, httpx.Response(200, content=LINE))

    assert len(list(client.stream("hello", ["tone"], routing_key="user-1"))) == 1
    assert [request.headers["accept"] for request in requests] == ["application/x-ndjson"] * 2
    assert requests[1].headers["x-routing-key"] == "user-1"

    broken, asked = client_of(httpx.ReadError("reset"), httpx.Response(200, content=LINE))
    with pytest.raises(ConnectionFailedError):
        list(broken.stream("hello", ["tone"]))
    assert len(asked) == 1
