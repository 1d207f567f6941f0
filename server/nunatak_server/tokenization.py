"""Tokenization: checks texts on the event loop, encodes them on a thread pool."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from nunatak_model import Encoding, TextInput
from nunatak_server.errors import EmptyTextError, InvalidTextError, TextTooLongError


class Encoder(Protocol):
    """What turns texts into tokens; called from several threads at once."""

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        """Tokenize and truncate each input."""
        ...


def check_texts(inputs: Sequence[TextInput], *, max_chars: int) -> None:
    """Return if every text can be tokenized at bounded cost.

    Tokenizers truncate after tokenizing, so the length is capped here, in characters.

    Raises:
        TextTooLongError: a text has more than `max_chars` characters.
        EmptyTextError: a text is empty or only white space.
        InvalidTextError: a text holds NUL or a lone surrogate.
    """
    for position, item in enumerate(inputs):
        for text in (item,) if isinstance(item, str) else item:
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
        self, inputs: Sequence[TextInput], *, max_lengths: Iterable[int]
    ) -> Mapping[int, list[Encoding]]:
        """Encode the inputs once for each maximal length, in tokens."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, self._encode_each, inputs, frozenset(max_lengths)
        )

    def close(self) -> None:
        """End the threads once their work is done."""
        self._pool.shutdown()

    def _encode_each(
        self, inputs: Sequence[TextInput], max_lengths: frozenset[int]
    ) -> dict[int, list[Encoding]]:
        return {
            max_length: self._encoder.encode(inputs, max_length=max_length)
            for max_length in max_lengths
        }
