"""Writing answers: what reaches the transport below, and in how many pieces."""

import asyncio
from collections.abc import Callable, Iterable

import pytest

from nunatak_server.http.protocol import JoiningTransport

Data = bytes | bytearray | memoryview


class Recorded(asyncio.Transport):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: Data) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        self.sent.append(b"".join(list_of_data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def after_one_turn(act: Callable[[JoiningTransport, Recorded], None]) -> Recorded:
    """Act on a transport, and let the event loop turn once."""

    async def scenario() -> Recorded:
        below = Recorded()
        act(JoiningTransport(below, asyncio.get_running_loop()), below)
        await asyncio.sleep(0)
        return below

    return asyncio.run(scenario())


def write_all(*parts: bytes) -> Callable[[JoiningTransport, Recorded], None]:
    def act(transport: JoiningTransport, _: Recorded) -> None:
        for part in parts:
            transport.write(part)

    return act


def test_a_head_and_its_body_are_one_write() -> None:
    assert after_one_turn(write_all(b"head", b"body")).sent == [b"headbody"]


@pytest.mark.parametrize("num_parts", range(1, 6))
def test_all_that_is_written_arrives_once_and_in_order(num_parts: int) -> None:
    parts = [bytes([65 + number]) for number in range(num_parts)]

    assert b"".join(after_one_turn(write_all(*parts)).sent) == b"".join(parts)


def test_a_body_is_sent_before_the_loop_turns() -> None:
    def act(transport: JoiningTransport, below: Recorded) -> None:
        write_all(b"head", b"body")(transport, below)
        assert below.sent == [b"headbody"]

    after_one_turn(act)


def test_a_head_without_a_body_waits_for_one_turn_at_most() -> None:
    def act(transport: JoiningTransport, below: Recorded) -> None:
        transport.write(b"head")
        assert below.sent == []

    assert after_one_turn(act).sent == [b"head"]


def test_closing_sends_the_head_first() -> None:
    def act(transport: JoiningTransport, below: Recorded) -> None:
        transport.write(b"head")
        transport.close()
        assert transport.is_closing()
        assert below.sent == [b"head"]

    assert after_one_turn(act).sent == [b"head"]


def test_nothing_is_sent_on_a_connection_that_was_lost() -> None:
    def act(transport: JoiningTransport, below: Recorded) -> None:
        transport.write(b"head")
        below.close()

    assert after_one_turn(act).sent == []
