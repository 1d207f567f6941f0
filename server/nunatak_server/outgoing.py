"""Calls of this server to others, which may be broken or hostile: bounded, and without a memory."""

from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from nunatak_contract.upstreams import CALL_HEADERS, MAX_REPLY_BYTES, ReplyBody, UnusableReplyError


def http_client(*, headers: dict[str, str] | None = None, **options: Any) -> httpx.AsyncClient:  # noqa: ANN401 - options of httpx
    """Return a client without cookies, redirects, compression and kept connections."""
    return httpx.AsyncClient(
        headers={**CALL_HEADERS, **(headers or {})},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        event_hooks={"response": [_without_redirect]},
        **options,
    )


async def _without_redirect(reply: httpx.Response) -> None:
    # httpx reads the address of a redirect that nobody follows, and some addresses break it.
    reply.headers.pop("location", None)


async def whole_body(reply: httpx.Response, *, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
    """Read and close a streamed reply.

    Raises:
        UnusableReplyError: another status than 200, a compressed body, or more than `max_bytes`.
        httpx.HTTPError: the connection broke.
    """
    try:
        if reply.status_code != HTTPStatus.OK:
            raise UnusableReplyError(f"its status is {reply.status_code}")
        body = ReplyBody(reply.headers, max_bytes=max_bytes)
        async for part in reply.aiter_raw():
            body.take(part)
        return bytes(body)
    finally:
        await reply.aclose()
