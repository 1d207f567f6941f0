"""Laws of API keys in both clients."""

import asyncio

import httpx
import pytest

from nunatak_client import (
    AsyncClient,
    AuthenticationError,
    Client,
    InvalidInputError,
    PermissionDeniedError,
)

URL = "http://tests.invalid"


def headers_sent(api_key: str | None = None) -> list[str | None]:
    """The key that each client sends."""
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"tasks": []})

    async def ask() -> None:
        async with AsyncClient(
            URL, api_key=api_key, transport=httpx.MockTransport(handle)
        ) as client:
            await client.tasks()

    with Client(URL, api_key=api_key, transport=httpx.MockTransport(handle)) as client:
        client.tasks()
    asyncio.run(ask())
    return seen


def test_no_key_is_sent_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUNATAK_API_KEY", raising=False)

    assert headers_sent() == [None, None]


def test_the_key_of_the_environment_is_sent_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUNATAK_API_KEY", "of-the-environment")

    assert headers_sent() == ["Bearer of-the-environment"] * 2
    assert headers_sent("given") == ["Bearer given"] * 2
    assert headers_sent("") == [None, None]


@pytest.mark.parametrize("key", ["secret\n", "se cret", "s\u00e9cret", "se\x00cret"])
def test_a_key_that_no_header_may_hold_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Client(URL, api_key=key)

    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthenticationError), (403, PermissionDeniedError)]
)
def test_a_refused_key_has_an_error_of_its_own(
    status: int, kind: type[AuthenticationError | PermissionDeniedError]
) -> None:
    problem = {"code": "a_code", "status": status, "detail": "a key is needed"}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=problem))

    with Client(URL, api_key="wrong", transport=transport) as client, pytest.raises(kind) as caught:
        client.tasks()

    assert "wrong" not in str(caught.value)
