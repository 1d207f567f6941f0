"""Tokenization: checks texts on the event loop, encodes them on a thread pool."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from nunatak_model import Encoding, TextInput
from nunatak_server.errors import (
    EmptyTextError,
    InvalidTextError,
    TextTooLongError,
    TooManyTokensError,
)
from nunatak_server.inputs import TaskInput, strings_in, texts_to_read

MAX_DEFAULT_STRIDE = 128
"""As in the reference implementation of BERT (Devlin et al. 2019) for SQuAD."""

Encodings = tuple[Encoding, ...]
"""What is read for one input: windows of one text, or one pair for each document."""


class Encoder(Protocol):
    """What turns texts into tokens; called from several threads at once."""

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        """Tokenize and truncate each input."""
        ...

    def encode_windows(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[Encodings]:
        """Tokenize each input whole, as overlapping windows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a task reads; tasks of equal readings share their encodings. Lengths are in tokens."""

    max_length: int
    stride: int | None
    """What neighbouring windows share; None: nothing is windowed."""
    truncates: bool = True
    """Whether a long text that is not windowed is cut; if not, it is refused."""


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


class Tokenization:
    """Encodes texts off the event loop."""

    def __init__(self, encoder: Encoder, *, num_threads: int) -> None:
        self._encoder = encoder
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nunatak-tokenize")

    async def encode(
        self, inputs: Sequence[TaskInput], *, readings: Iterable[Reading]
    ) -> Mapping[Reading, list[Encodings]]:
        """Encode every input once for each distinct reading.

        Raises:
            TooManyTokensError: a text is longer than a reading that does not truncate.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, self._encode_each, inputs, frozenset(readings)
        )

    def close(self) -> None:
        """End the threads once their work is done."""
        self._pool.shutdown()

    def _encode_each(
        self, inputs: Sequence[TaskInput], readings: frozenset[Reading]
    ) -> dict[Reading, list[Encodings]]:
        texts = [texts_to_read(item) for item in inputs]
        flat = list(chain.from_iterable(texts))
        found = dict[Reading, list[Encodings]]()
        for reading in readings:
            encodings = iter(self._encode(flat, reading))
            found[reading] = [
                tuple(chain.from_iterable(islice(encodings, len(item)))) for item in texts
            ]
        return found

    def _encode(self, texts: Sequence[TextInput], reading: Reading) -> list[Encodings]:
        if reading.stride is None:
            # One token more than may be shows that a text is too long, however long it is.
            room = reading.max_length + (0 if reading.truncates else 1)
            whole = self._encoder.encode(texts, max_length=room)
            _check_lengths(whole, reading.max_length)
            return [(encoding,) for encoding in whole]
        return self._encoder.encode_windows(
            texts, max_length=reading.max_length, stride=reading.stride
        )


def _check_lengths(encodings: Sequence[Encoding], max_length: int) -> None:
    for position, encoding in enumerate(encodings):
        if encoding.num_tokens > max_length:
            raise TooManyTokensError(position, max_length)
