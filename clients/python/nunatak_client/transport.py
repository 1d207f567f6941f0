"""What both clients share about HTTP: the address, and a response as a reply."""

import os
import re

import httpx

from nunatak_client.errors import InvalidInputError
from nunatak_client.replies import Reply

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 30.0
API_KEY_VARIABLE = "NUNATAK_API_KEY"

_SENDABLE_KEY = re.compile(r"[!-~]+")


def server_url(url: str) -> httpx.URL:
    """Check the address of a server.

    Raises:
        InvalidInputError: not an http or https URL with a host.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInputError(f"server must be a URL such as {DEFAULT_URL}: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise InvalidInputError(f"server must be a URL such as {DEFAULT_URL}, got {url!r}")
    return parsed


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the header that presents a key: the given one, or that of the environment.

    Raises:
        InvalidInputError: the key holds something that no header may.
    """
    key = api_key if api_key is not None else os.environ.get(API_KEY_VARIABLE, "")
    if not key:
        return {}
    if _SENDABLE_KEY.fullmatch(key) is None:
        # The key itself stays out of the message, which may end up in a log.
        raise InvalidInputError(
            f"an API key must be printable ASCII without spaces; check {API_KEY_VARIABLE}, "
            "a line break at the end is the usual slip"
        )
    return {"authorization": f"Bearer {key}"}


def to_reply(response: httpx.Response) -> Reply:
    """The parts of a response that count."""
    return Reply(status=response.status_code, headers=response.headers, content=response.content)
