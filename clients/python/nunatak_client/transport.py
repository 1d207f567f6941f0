"""What both clients share about HTTP: the address, and a response as a reply."""

import httpx

from nunatak_client.errors import InvalidInputError
from nunatak_client.replies import Reply

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT_S = 30.0


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


def to_reply(response: httpx.Response) -> Reply:
    """The parts of a response that count."""
    return Reply(status=response.status_code, headers=response.headers, content=response.content)
