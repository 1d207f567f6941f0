"""Turns where few can go on at once: one of each caller, however many of them one caller brings.

Tokenization: checks texts on the event loop, encodes all but short ones on a thread pool.

What goes to the threads goes in pieces, one of each caller in turn, so that nobody's long texts
hold up those of others for longer than a piece.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Final, Protocol

from nunatak_model import Encoding, TextInput
from nunatak_server.errors import (
    EmptyTextError,
    InvalidTextError,
    TextTooLongError,
    TooManyTokensError,
)
from nunatak_server.inputs import TaskInput, strings_in, texts_to_read


class FairSemaphore:
    """Lets so many go on at once; belongs to the event loop thread.

    A caller that has had a turn goes behind all others that wait (round-robin, Nagle 1987), so who
    comes waits for at most one turn of each of them. Those of one caller go in their order.
    """

    def __init__(self, *, num_slots: int) -> None:
        self._num_free = num_slots
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By caller, whose turn it is next first; nobody waits while a place is free."""

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncGenerator[None]:
        """Wait for a turn, and have it while the block runs."""
        await self._enter(caller)
        try:
            yield
        finally:
            self._leave(caller)

    async def _enter(self, caller: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It was given a turn in the moment in which it gave up.
                self._leave(caller)
            raise

    def _leave(self, caller: str) -> None:
        self._put_behind(caller)
        if not self._admit_next():
            self._num_free += 1

    def _admit_next(self) -> bool:
        while self._waiting:
            caller, queue = next(iter(self._waiting.items()))
            # Who gave up has no turn, and costs its caller none.
            while queue and queue[0].done():
                queue.popleft()
            turn = queue.popleft() if queue else None
            self._put_behind(caller)
            if turn is not None:
                turn.set_result(None)
                return True
        return False

    def _put_behind(self, caller: str) -> None:
        queue = self._waiting.pop(caller, None)
        if queue:
            self._waiting[caller] = queue


MAX_DEFAULT_STRIDE = 128
"""As in the reference implementation of BERT (Devlin et al. 2019) for SQuAD."""

MAX_CHARS_ON_LOOP: Final = 512
"""Over all texts and readings. To encode as many takes a third of a millisecond at most, and to
hand them to a thread and back nearly as long; more would hold up the event loop."""

MAX_CHARS_A_TURN: Final = 4096
"""Of one or several texts; a longer text is a turn by itself. That is about two milliseconds, and
to change turns takes a tenth of it."""

Encodings = tuple[Encoding, ...]
"""What is read for one input: windows of one text, or one pair for each document."""


class Encoder(Protocol):
    """What turns texts into tokens; called from several threads at once."""

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        """Tokenize and truncate each input."""
        ...

    def encode_all(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[Encodings]:
        """Tokenize each input; one that is too long whole, as overlapping windows."""
        ...

    def encode_windows(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[Encodings]:
        """Tokenize each input whole, as overlapping windows that are aligned with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a task reads; tasks of equal readings share their encodings. Lengths are in tokens."""

    max_length: int
    stride: int | None
    """What neighbouring windows share; None: what is too long is cut."""
    is_aligned: bool = False
    """Whether windows tell where their tokens lie in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is read for one input, over all its windows and documents; lengths in tokens."""

    num_tokens: int
    """Special tokens included; what several windows of a text hold counts once."""
    num_left_out: int
    """Tokens that are not read, because the text was cut."""
    is_windowed: bool
    """Whether a text is read in several windows."""

    @property
    def is_cut(self) -> bool:
        """Whether a part of the input is not read."""
        return self.num_left_out > 0


def extent_of(encodings: Encodings) -> Extent:
    """Return how much is read for an input."""
    parts = [encoding.part for encoding in encodings]
    total = sum(encoding.num_tokens for encoding in encodings)
    return Extent(
        num_tokens=total - sum(part.num_repeated for part in parts),
        num_left_out=sum(part.num_left_out for part in parts),
        is_windowed=any(part.index for part in parts),
    )


def find_cut(encodings: Sequence[Encodings], *, max_length: int) -> TooManyTokensError | None:
    """Return why inputs that must not be cut are refused: the first text that was, or None."""
    for position, encoding in enumerate(chain.from_iterable(encodings)):
        if encoding.part.num_left_out:
            size = encoding.num_tokens + encoding.part.num_left_out
            return TooManyTokensError(position, size, max_length)
    return None


def default_stride(max_length: int) -> int:
    """Return what neighbouring windows share where the caller does not say."""
    return min(MAX_DEFAULT_STRIDE, max_length // 2)


def check_texts(inputs: Sequence[TaskInput], *, max_chars: int) -> None:
    """Return if every text can be tokenized at bounded cost.

    Tokenizers truncate after tokenizing, so the length is capped here, in characters.

    Raises:
        TextTooLongError: a text has more than `max_chars` characters.
        EmptyTextError: a text is empty or only white space.
        InvalidTextError: a text holds NUL or a lone surrogate.
    """
    for position, item in enumerate(inputs):
        for text in strings_in(item):
            _check_text(text, position, max_chars)


def _check_text(text: str, position: int, max_chars: int) -> None:
    if len(text) > max_chars:
        raise TextTooLongError(position, len(text), max_chars)
    if not text or text.isspace():
        raise EmptyTextError(position)
    if "\0" in text:
        raise InvalidTextError(position, "a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidTextError(position, "a lone surrogate, which is no character") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One text as it is read once."""

    reading: Reading
    position: int
    """Among all texts of the request."""
    text: TextInput

    @property
    def num_chars(self) -> int:
        return len(self.text) if isinstance(self.text, str) else sum(map(len, self.text))


class Tokenization:
    """Encodes texts: short ones at once, all others off the event loop, to which it belongs."""

    def __init__(self, encoder: Encoder, *, num_threads: int) -> None:
        self._encoder = encoder
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nunatak-tokenize")
        self._semaphore = FairSemaphore(num_slots=num_threads)

    async def encode(
        self, inputs: Sequence[TaskInput], *, readings: Iterable[Reading], caller: str
    ) -> Mapping[Reading, list[Encodings]]:
        """Encode every input once for each distinct reading."""
        distinct = tuple(dict.fromkeys(readings))
        texts = [texts_to_read(item) for item in inputs]
        pieces = [
            _Piece(reading=reading, position=position, text=text)
            for reading in distinct
            for position, text in enumerate(chain.from_iterable(texts))
        ]
        if sum(piece.num_chars for piece in pieces) <= MAX_CHARS_ON_LOOP:
            encodings = iter(self._encode(pieces))
        else:
            encodings = iter(await self._encode_in_turn(pieces, caller))
        return {
            reading: [tuple(chain.from_iterable(islice(encodings, len(item)))) for item in texts]
            for reading in distinct
        }

    def close(self) -> None:
        """End the threads once their work is done."""
        self._pool.shutdown()

    async def _encode_in_turn(self, pieces: Sequence[_Piece], caller: str) -> list[Encodings]:
        loop = asyncio.get_running_loop()
        encodings = list[Encodings]()
        for chunk in _chunks(pieces):
            async with self._semaphore.slot(caller):
                encodings += await loop.run_in_executor(self._pool, self._encode, chunk)
        return encodings

    def _encode(self, pieces: Sequence[_Piece]) -> list[Encodings]:
        """Return what is read for each piece; those of one reading lie together."""
        encodings = list[Encodings]()
        for reading, group in groupby(pieces, key=attrgetter("reading")):
            encodings += self._encode_alike(list(group), reading)
        return encodings

    def _encode_alike(self, pieces: Sequence[_Piece], reading: Reading) -> list[Encodings]:
        texts = [piece.text for piece in pieces]
        if reading.stride is None:
            cut = self._encoder.encode(texts, max_length=reading.max_length)
            return [(encoding,) for encoding in cut]
        encode = self._encoder.encode_windows if reading.is_aligned else self._encoder.encode_all
        return encode(texts, max_length=reading.max_length, stride=reading.stride)


def _chunks(pieces: Sequence[_Piece]) -> Iterator[Sequence[_Piece]]:
    """Cut the pieces where they reach the characters of a turn; every chunk holds at least one."""
    begin = num_chars = 0
    for index, piece in enumerate(pieces):
        num_chars += piece.num_chars
        if num_chars > MAX_CHARS_A_TURN and index > begin:
            yield pieces[begin:index]
            begin, num_chars = index, piece.num_chars
    yield pieces[begin:]
