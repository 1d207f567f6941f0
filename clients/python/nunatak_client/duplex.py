"""One request that is answered while its body is sent, as bytes; shared by both clients."""

import json
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

import h11
import httpx
from pydantic import ValidationError

from nunatak_client.errors import ConnectionFailedError, InvalidInputError, InvalidResponseError
from nunatak_client.replies import Reply, error_of, raise_for_problem
from nunatak_contract.wire import LINES_TYPE, StreamEvent

PIECE_BYTES: Final = 65536


class VerdictExchange:
    """The bytes to send for the chunks of a text, and the events in the received bytes."""

    def __init__(self, url: httpx.URL, headers: Mapping[str, str], policy: str) -> None:
        """Ask the server at `url` for the verdict of a policy.

        Raises:
            InvalidInputError: the policy has no name.
        """
        if not policy:
            raise InvalidInputError("policy must be the name of a policy, got ''")
        self._protocol = h11.Connection(h11.CLIENT)
        target = f"{url.path.rstrip('/')}/v1/verdicts/{quote(policy, safe='')}/stream"
        fields = {name: headers[name] for name in ("authorization",) if name in headers}
        fields |= {
            "host": url.netloc.decode(),
            "content-type": LINES_TYPE,
            "accept": LINES_TYPE,
            "transfer-encoding": "chunked",
        }
        request = h11.Request(method="POST", target=target, headers=list(fields.items()))
        self._head = self._protocol.send(request) or b""
        self._reply: h11.Response | None = None
        self._rest = b""
        self.is_over = False
        """Whether the last event is there."""

    def head(self) -> bytes:
        """Return the bytes of the request's head."""
        return self._head

    def chunk(self, text: str) -> bytes:
        """Return the bytes for more text."""
        line = json.dumps({"text": text}).encode() + b"\n"
        return self._protocol.send(h11.Data(data=line)) or b""

    def end(self) -> bytes:
        """Return the bytes after the whole text."""
        return self._protocol.send(h11.EndOfMessage()) or b""

    def received(self, data: bytes) -> Iterator[StreamEvent]:
        """Yield the events that are whole. No bytes mean that the connection has ended.

        Raises:
            ApiError: the server refused, or could not judge: treat the text as blocked.
            ConnectionFailedError: the answer ended without a final verdict.
            InvalidResponseError: the answer does not follow the contract.
        """
        try:
            self._protocol.receive_data(data)
            while not self.is_over:
                match self._protocol.next_event():
                    case h11.Response() as reply:
                        self._reply = reply
                    case h11.Data(data=part):
                        self._rest += part
                        yield from self._events()
                    case h11.EndOfMessage() | h11.ConnectionClosed():
                        self._refuse()
                    case _:
                        return
        except h11.RemoteProtocolError as error:
            raise ConnectionFailedError(f"the stream of the verdict broke: {error}") from error

    def _events(self) -> Iterator[StreamEvent]:
        if self._reply is None or self._reply.status_code // 100 != 2:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            try:
                event = StreamEvent.model_validate_json(line)
            except ValidationError as error:
                raise InvalidResponseError(f"expected an event: {error}") from error
            if event.error is not None:
                raise error_of(event.error)
            self.is_over = event.final
            yield event

    def _refuse(self) -> None:
        if self._reply is not None:
            headers = httpx.Headers(list(self._reply.headers))
            raise_for_problem(
                Reply(status=self._reply.status_code, headers=headers, content=self._rest)
            )
        raise ConnectionFailedError("the stream of the verdict ended without a final verdict")
