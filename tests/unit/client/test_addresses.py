import httpx
import pytest

from nunatak_client import AsyncClient, Client, ConnectionFailedError, InvalidInputError


def reset(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset", request=request)


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://host", "http://", "http://a:port"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_address_that_is_no_http_url_is_refused(kind: type[Client | AsyncClient], url: str) -> None:
    with pytest.raises(InvalidInputError):
        kind(url)


def test_password_in_the_address_stays_out_of_messages() -> None:
    client = Client("http://user:secret@tests.invalid", transport=httpx.MockTransport(reset))

    with client, pytest.raises(ConnectionFailedError) as caught:
        client.info()

    assert "secret" not in str(caught.value)
