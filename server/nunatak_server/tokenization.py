"""From inputs to tokens: the kinds of inputs, the text checks, and the encoding of texts.

Short texts are encoded on the event loop, all others on a thread pool. Work for the pool is cut
into chunks, and `FairSemaphore` gives callers their chunks in turn: long texts of one caller delay
the texts of another caller by at most one chunk.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Final

from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Input, Query, Question, TextInput
from nunatak_model import Encoding, TextTokenizer
from nunatak_server.errors import TooManyTokensError
from nunatak_server.scheduler.turns import FairSemaphore

KINDS: Final = {str: "text", tuple: "pair", Question: "question", Query: "query"}
"""What messages call the kinds of inputs."""
READ_BY: Final = {
    HeadKind.TOKEN_CLASSIFICATION: (str,),
    HeadKind.QUESTION_ANSWERING: (Question,),
    HeadKind.RANKING: (Query,),
}
"""The inputs of a head; those of a sequence classification depend on what its task reads."""
READ_AS: Final = {Reads.SINGLE: (str,), Reads.PAIR: (tuple,), None: (str, tuple)}


def find_misfit(
    inputs: Sequence[Input], head: HeadKind, reads: Reads | None
) -> NunatakError | None:
    wanted = READ_BY.get(head) or READ_AS[reads]
    for position, item in enumerate(inputs):
        if not isinstance(item, wanted):
            return NunatakError(
                "wrong_input_kind",
                position=position,
                kind=next(name for kind, name in KINDS.items() if isinstance(item, kind)),
                head=head.replace("_", " "),
                wanted=" or a ".join(KINDS[it] for it in wanted),
            )
    return None


def strings_in(item: Input) -> tuple[str, ...]:
    match item:
        case str():
            return (item,)
        case tuple():
            return item
        case Question():
            return item.question, item.context
        case Query():
            return item.query, *item.documents


def count_documents(inputs: Sequence[Input]) -> int:
    return sum(len(item.documents) for item in inputs if isinstance(item, Query))


def texts_to_read(item: Input) -> tuple[TextInput, ...]:
    """Return the texts or pairs to encode for an input: one, or one for each document."""
    match item:
        case Question():
            return ((item.question, item.context),)
        case Query():
            return tuple((item.query, document) for document in item.documents)
        case _:
            return (item,)


MAX_DEFAULT_STRIDE = 128
"""Default stride of contexts, from BERT's reference implementation for SQuAD (Devlin et al.
2019)."""

MAX_CHARS_ON_LOOP: Final = 512
"""Most characters, over all texts and readings, that the event loop encodes. This takes at most a
third of a millisecond. The hand-over to a thread would take nearly as long. More would block the
event loop."""

CHARS_A_TEXT: Final = 16
"""Characters that take the time of the fixed work for each text."""

MAX_CHARS_A_CHUNK: Final = 4096
"""Characters of one chunk; a longer text is one chunk. A chunk takes about two milliseconds, and a
change of slots a tenth of that."""

Encodings = tuple[Encoding, ...]
"""The encodings of one input: windows of one text, or one pair for each document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a task reads texts; tasks with equal readings share encodings. Lengths are in tokens."""

    max_length: int
    stride: int | None
    """Tokens that adjacent windows share; None means that long texts are cut."""
    is_aligned: bool = False
    """Whether encodings hold the places of tokens in the text."""
    backbone: str
    """The digest of the backbone whose tokenizer reads."""
    is_literal: bool = False
    """Whether special tokens in a text are plain text. Otherwise they are tokens, as in
    transformers, and a text could hide behind them."""
    start: tuple[int, int] | None = None
    """For a part of a growing text: a place, and the number of tokens from there to the first
    window. Such a text is read literally at once, because a special token may come later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Numbers of read and unread tokens of one input, over all windows and documents."""

    num_tokens: int
    """Tokens that are read, with special tokens; tokens in several windows count once."""
    num_left_out: int
    """Tokens that are not read, because the text is cut."""
    num_unread: int = 0
    """Characters of the input that no token stands for."""
    is_windowed: bool
    """Whether a text is read in several windows."""

    @property
    def is_cut(self) -> bool:
        return self.num_left_out > 0


def extent_of(encodings: Encodings) -> Extent:
    parts = [encoding.part for encoding in encodings]
    total = sum(encoding.num_tokens for encoding in encodings)
    return Extent(
        num_tokens=total - sum(part.num_repeated for part in parts),
        num_left_out=sum(part.num_left_out for part in parts),
        num_unread=sum(part.num_unread for part in parts),
        is_windowed=any(part.index for part in parts),
    )


def find_cut(encodings: Sequence[Encodings], *, max_length: int) -> TooManyTokensError | None:
    for position, of_input in enumerate(encodings):
        for encoding in of_input:
            if encoding.part.num_left_out:
                size = encoding.num_tokens + encoding.part.num_left_out
                return TooManyTokensError(position, size, max_length)
    return None


def default_stride(max_length: int) -> int:
    return min(MAX_DEFAULT_STRIDE, max_length // 2)


def check_texts(inputs: Sequence[Input], *, max_chars: int) -> None:
    """Return if every text can be tokenized at bounded cost.

    Tokenizers truncate after tokenizing, so this check bounds the length in characters.
    """
    for position, item in enumerate(inputs):
        for text in strings_in(item):
            _check_text(text, position, max_chars)


def _check_text(text: str, position: int, max_chars: int) -> None:
    if len(text) > max_chars:
        raise NunatakError(
            "text_too_long", position=position, num_chars=len(text), limit_chars=max_chars
        )
    if not text or text.isspace():
        raise NunatakError("empty_text", position=position)
    if "\0" in text:
        raise NunatakError("invalid_text", position=position, reason="a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NunatakError(
            "invalid_text", position=position, reason="a lone surrogate, which is no character"
        ) from None


def encode_alike(
    encoder: TextTokenizer, placed: Sequence[tuple[int, TextInput]], reading: Reading
) -> list[Encodings]:
    """Return the encodings of each text in one reading; a text comes with its input's position."""
    length, texts = reading.max_length, [text for _, text in placed]
    try:
        if reading.stride is None:
            return [(encoding,) for encoding in encoder.encode(texts, max_length=length)]
        encode = encoder.encode_all
        if reading.is_aligned:
            encode = partial(encoder.encode_windows, start=reading.start or (0, 0))
        return encode(texts, max_length=length, stride=reading.stride)
    except NunatakError as error:
        if error.position is not None:  # among the texts of this call
            error.position, _ = placed[error.position]
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One text with one reading."""

    reading: Reading
    position: int
    """Position of the text's input in the request."""
    text: TextInput


def _size_of(text: TextInput) -> int:
    num_chars = len(text) if isinstance(text, str) else sum(map(len, text))
    return num_chars + CHARS_A_TEXT


class Tokenization:
    """Encodes short texts at once and all others on threads.

    Only the event loop thread may use it.
    """

    def __init__(self, encoders: Mapping[str, TextTokenizer], *, num_threads: int) -> None:
        """`encoders` has the encoder of each backbone, by digest."""
        self._encoders = encoders
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="nunatak-tokenize")
        self._semaphore = FairSemaphore(num_slots=num_threads)

    async def encode(
        self, inputs: Sequence[Input], *, readings: Iterable[Reading], caller: str
    ) -> Mapping[Reading, list[Encodings]]:
        distinct = tuple(dict.fromkeys(readings))
        texts = [texts_to_read(item) for item in inputs]
        pieces = [
            _Piece(reading=reading, position=position, text=text)
            for reading in distinct
            for position, of_input in enumerate(texts)
            for text in of_input
        ]
        sizes = map(_size_of, chain.from_iterable(texts))
        is_short = len(distinct) * sum(sizes) <= MAX_CHARS_ON_LOOP + CHARS_A_TEXT
        # The first literal reading makes a tokenizer, which takes long.
        if is_short and not any(it.start for it in distinct):
            found = self._encode(pieces)
        else:
            found = await self._encode_in_turn(pieces, caller)
        again = [index for index, piece in enumerate(pieces) if self._hides(piece, found[index])]
        if again:
            literal = await self._encode_in_turn(
                [pieces[it] for it in again], caller, is_again=True
            )
            for index, encoded in zip(again, literal, strict=True):
                found[index] = encoded
        encodings = iter(found)
        return {
            reading: [tuple(chain.from_iterable(islice(encodings, len(item)))) for item in texts]
            for reading in distinct
        }

    def close(self) -> None:
        self._pool.shutdown()

    def _hides(self, piece: _Piece, encodings: Encodings) -> bool:
        reading = piece.reading
        return reading.is_literal and any(
            map(self._encoders[reading.backbone].finds_special, encodings)
        )

    async def _encode_in_turn(
        self, pieces: Sequence[_Piece], caller: str, *, is_again: bool = False
    ) -> list[Encodings]:
        loop = asyncio.get_running_loop()
        encode = self._encode_literally if is_again else self._encode
        encodings = list[Encodings]()
        for chunk in _chunks(pieces):
            async with self._semaphore.slot(caller):
                encodings += await loop.run_in_executor(self._pool, encode, chunk)
        return encodings

    def _encode(self, pieces: Sequence[_Piece]) -> list[Encodings]:
        """Return the encodings of each piece; pieces with equal readings must be adjacent."""
        encodings = list[Encodings]()
        for reading, group in groupby(pieces, key=attrgetter("reading")):
            alike = [(piece.position, piece.text) for piece in group]
            encoder = self._encoders[reading.backbone]
            encodings += encode_alike(encoder.literal if reading.start else encoder, alike, reading)
        return encodings

    def _encode_literally(self, pieces: Sequence[_Piece]) -> list[Encodings]:
        """Return the encodings of each piece without special tokens of the text."""
        encodings = list[Encodings]()
        for piece in pieces:
            encoder = self._encoders[piece.reading.backbone].literal
            (found,) = encode_alike(encoder, [(piece.position, piece.text)], piece.reading)
            if any(map(encoder.finds_special, found)):
                reason = "a special token of the backbone, such as [SEP] or </s>"
                raise NunatakError("invalid_text", position=piece.position, reason=reason)
            encodings.append(found)
        return encodings


def _chunks(pieces: Iterable[_Piece]) -> Iterator[Sequence[_Piece]]:
    """Cut the pieces into chunks of at most `MAX_CHARS_A_CHUNK`, of one piece at least."""
    chunk, size = list[_Piece](), 0
    for piece in pieces:
        size += _size_of(piece.text)
        if chunk and size > MAX_CHARS_A_CHUNK:
            yield chunk
            chunk, size = [], _size_of(piece.text)
        chunk.append(piece)
    yield chunk
