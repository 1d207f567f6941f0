"""What becomes of failures that no route answers."""

import logging

import pytest
from starlette.types import Message, Receive, Scope, Send

from nunatak_server.errors import DrainingError
from nunatak_server.http.problems import FailureMiddleware
from nunatak_server.http.state import give_id

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.mark.parametrize("error", [ValueError("secret"), DrainingError()])
async def test_a_failure_after_an_answer_has_begun_is_logged_by_its_id_and_raised(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "nunatak_server")
    sent = list[Message]()
    scope: Scope = {"type": "http", "headers": [(b"x-request-id", b"one")]}
    give_id(scope)

    async def fail(_: Scope, __: Receive, send: Send) -> None:
        await send(START)
        raise error

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(type(error)):
        await FailureMiddleware(fail)(scope, receive, send)

    assert sent == [START]
    assert f"request one failed ({type(error).__name__})" in caplog.text
    assert "secret" not in caplog.text
