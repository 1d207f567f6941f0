"""Writes an answer at once: its head together with its body."""

import asyncio


class JoiningTransport(asyncio.Transport):
    """Holds the head of one answer back for what follows in the same turn of the event loop.

    The transport below would send each by itself, and so wake the caller twice. Nothing but the
    head ever waits, and that for one turn at most.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._has_begun = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send what is given, and the head before it; the first that is given is the head."""
        if not self._has_begun:
            self._has_begun = True
            self._head = bytes(data)
            self._loop.call_soon(self._send_head)
        elif self._head is None:
            self._transport.write(data)
        else:
            head, self._head = self._head, None
            self._transport.writelines((head, data))

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._send_head()
        self._transport.close()

    def is_closing(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self._transport.is_closing()

    def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
