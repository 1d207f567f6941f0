"""Tokenization of texts by the backbone's own `tokenizer.json`, and the bounds of this file.

The bounds are checked before the tokenizers library builds anything. The library makes a list as
long as the largest token id, applies replacements of any length, and ends a match that backtracks
too often with a panic.
"""

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers

from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import TextInput
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.text.encoding import (
    WHOLE,
    Encoding,
    Part,
    Vocabulary,
    align,
    long_text,
    num_hidden,
    num_unknown,
    parts_of_windows,
)

MAX_QUESTION_TOKENS = 64
"""From BERT's reference implementation for SQuAD (Devlin et al. 2019)."""
WORD: Final = re.compile(r"\w")
WORD_BEGIN: Final = "\u2581"
"""The mark of Unigram in front of each word."""
UNREACHABLE: Final = "\0"
"""Begins the names of tokens that no text can hold, because no text holds NUL."""


class TextTokenizer:
    """The backbone's tokenizer. Several threads may call it at once."""

    def __init__(self, definition: bytes, *, num_token_types: int) -> None:
        self.digest = hashlib.sha256(definition).hexdigest()
        self._num_token_types = num_token_types
        self._without_framing: Tokenizer | None = None
        self._literal: TextTokenizer | None = None
        self._lock = threading.Lock()
        try:
            self._definition = definition.decode()
            parsed = json.loads(definition)
            check_bounds(parsed)
            self._tokenizer = self._uncut()
            # The post-processor alone, which puts the special tokens around a window.
            self._framing = Tokenizer(models.BPE())
            self._framing.post_processor = self._tokenizer.post_processor
            self._normalizer = self._tokenizer.normalizer
            self._vocabulary = Vocabulary.of(parsed)
            single = self._tokenizer.encode("a")
            self._special = _special_tokens(parsed, single)
            self._special.pop(self.unknown_id, None)
            self._num_framing = self._num_special(single.ids)
            pair = self._tokenizer.encode("a", "a")
        except NunatakError:
            raise
        except BaseException as error:  # the library has no type of its own, and it may panic
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            raise ValueError(f"tokenizer.json holds no tokenizer: {error}") from error
        self.tells_texts_apart = any(self._types(pair))
        """Whether the second text of a pair has another token type than the first."""

    @property
    def definition(self) -> str:
        return self._definition

    @property
    def unknown_id(self) -> int | None:
        return self._vocabulary.unknown_id

    def tokens_beyond(self, size: int) -> list[str]:
        """The tokens with an id from `size` on."""
        return sorted(it for it, number in self._tokenizer.get_vocab().items() if number >= size)

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        """Tokenize texts or pairs, special tokens included, in Rust without the interpreter's lock.

        Texts are cut to `max_length` tokens, the longer text of a pair first. The part of each
        encoding counts the cut tokens. The texts must hold no lone surrogates.
        """
        return [
            whole if whole.num_tokens <= max_length else long_text(whole, found).cut(max_length)
            for whole, found in self._whole(inputs)
        ]

    def encode_all(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[tuple[Encoding, ...]]:
        """Tokenize texts or pairs; longer ones than `max_length` tokens become overlapping windows.

        Adjacent windows share `stride` tokens, but never more than half of a window. In a pair,
        only the second text is divided into windows. The first text stands in every window, and is
        cut to half of the window if the pair leaves no more room. The encodings have no alignment.
        """
        return [
            (whole,)
            if whole.num_tokens <= max_length
            else tuple(long_text(whole, found).windows(max_length, stride=stride))
            for whole, found in self._whole(inputs)
        ]

    def encode_windows(
        self,
        inputs: Sequence[TextInput],
        *,
        max_length: int,
        stride: int,
        start: tuple[int, int] = (0, 0),
    ) -> list[tuple[Encoding, ...]]:
        """Like `encode_all`, aligned; the first text is also cut to `MAX_QUESTION_TOKENS`.

        `start` is a place in the text and a number of tokens: the first window begins so many
        tokens after those that begin before the place.
        """
        bare = iter(_encoded(self._encode_texts, inputs))
        found: list[tuple[Encoding, ...]] = []
        for item in inputs:
            first = None if isinstance(item, str) else next(bare)
            text = item if isinstance(item, str) else item[1]
            num_special = self._framing.num_special_tokens_to_add(first is not None)
            room, kept, left_out = max(0, max_length - num_special), 0, 0
            if first is not None:
                left_out = _cut(first, min(MAX_QUESTION_TOKENS, room // 2))
                kept = len(first.ids)
            room -= kept
            shared = min(stride, room // 2)
            piece = next(bare)
            _drop_before(piece, *start)
            if not room:
                left_out += len(piece.ids)
            windows = list(_windows(self._framing, first, piece, room=room, stride=shared))
            num_unread = self._num_unread(item, *(window.ids for window in windows))
            whole = Part(num_left_out=left_out, num_unread=num_unread)
            parts = parts_of_windows(num_special + kept, shared, whole)
            found.append(
                tuple(
                    self._aligned(window, text, part, num_repeated=shared if part.index else 0)
                    for window, part in zip(windows, parts, strict=False)
                )
            )
        return found

    @property
    def literal(self) -> "TextTokenizer":
        """The tokenizer that reads special tokens as plain text; made at the first use, slowly."""
        with self._lock:
            if self._literal is None:
                own = json.dumps(_without_special(json.loads(self._definition), self._special))
                self._literal = TextTokenizer(own.encode(), num_token_types=self._num_token_types)
            return self._literal

    def finds_special(self, encoding: Encoding) -> bool:
        """Whether a single text holds special tokens, next to those around each text."""
        return self._num_special(encoding.token_ids) > self._num_framing

    def _num_special(self, ids: Sequence[int]) -> int:
        return sum(map(self._special.__contains__, ids))

    def _encode_texts(self, inputs: list[TextInput]) -> list[tokenizers.Encoding]:
        texts = [text for item in inputs for text in ((item,) if isinstance(item, str) else item)]
        return self._bare().encode_batch(texts)

    def join(self, tokens: Sequence[str]) -> str:
        decoder = self._bare().decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def _whole(self, inputs: Sequence[TextInput]) -> Iterator[tuple[Encoding, tokenizers.Encoding]]:
        batch = _encoded(self._tokenizer.encode_batch_fast, inputs)
        for item, found in zip(inputs, batch, strict=True):
            token_ids = tuple(found.ids)
            num_unread = self._num_unread(item, token_ids)
            part = Part(num_unread=num_unread) if num_unread else WHOLE
            yield Encoding(token_ids=token_ids, type_ids=self._types(found), part=part), found

    def _num_unread(self, item: TextInput, *token_ids: Sequence[int]) -> int:
        texts = (item,) if isinstance(item, str) else item
        if len(texts) == 1 and len(token_ids[0]) == self._num_framing:
            return len(texts[0])
        count = sum(
            len(text) if self._is_dropped(text) else num_hidden(text, self._normalizer)
            for text in texts
        )
        unknown = self.unknown_id
        if unknown is None or not any(unknown in ids for ids in token_ids):
            return count
        # Only such texts need the places of their tokens, which cost half as much again.
        (found,) = self._tokenizer.encode_batch([item])
        return count + sum(
            num_unknown(text, found, unknown, text_id=text_id) for text_id, text in enumerate(texts)
        )

    def _is_dropped(self, text: str) -> bool:
        """Whether no token, or the begin of a word without its letters, is left of a text."""
        if WORD.search(text):
            return False
        spelt = self._bare().encode(text, add_special_tokens=False).tokens
        return not "".join(spelt).strip(WORD_BEGIN)

    def _types(self, found: tokenizers.Encoding) -> tuple[int, ...]:
        kinds, largest = tuple(found.type_ids), self._num_token_types - 1
        if max(kinds, default=0) <= largest:
            return kinds
        return tuple(min(kind, largest) for kind in kinds)

    def _aligned(
        self, window: tokenizers.Encoding, text: str, part: Part, *, num_repeated: int
    ) -> Encoding:
        return Encoding(
            token_ids=tuple(window.ids),
            type_ids=self._types(window),
            alignment=align(window, text, self._vocabulary, num_repeated=num_repeated),
            part=part,
        )

    def _bare(self) -> Tokenizer:
        """Without post-processor, which must run exactly once for each window.

        The post-processor of RoBERTa trims the offsets of tokens by the spaces in the tokens, even
        without special tokens.
        """
        with self._lock:
            if self._without_framing is None:
                self._without_framing = self._uncut()
                self._without_framing.post_processor = None
            return self._without_framing

    def _uncut(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._definition)
        # Callers with different lengths must not share truncation and padding.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.normalizer = _placing(tokenizer.normalizer)
        return tokenizer


def _placing(normalizer: Any) -> Any:  # noqa: ANN401 - the library's classes have no common type
    """Drop what a table of SentencePiece drops at the begin of a text before the table is read.

    Behind such characters, the library gives every token a place too far to the left.
    """
    placed = list[Any]()
    for part in normalizer if isinstance(normalizer, normalizers.Sequence) else (normalizer,):
        if isinstance(part, normalizers.Precompiled):
            dropped = "".join(it for it in map(chr, range(0xA0)) if not part.normalize_str(it))
            placed.append(normalizers.Replace(Regex(rf"\A[\0{re.escape(dropped)}]+"), ""))
        placed.append(part)
    return normalizers.Sequence(placed) if len(placed) > 1 else normalizer


def _encoded(
    encode: Callable[[list[TextInput]], list[tokenizers.Encoding]], inputs: Sequence[TextInput]
) -> list[tokenizers.Encoding]:
    try:
        return encode(list(inputs))
    except BaseException as error:
        if not is_panic(error):
            raise
        if "ThreadPool" in str(error):  # the fault of no text
            raise MemoryError(str(error)) from error
        if len(inputs) == 1:
            reason = "a run of characters that a pattern of the tokenizer tries to match too often"
            raise NunatakError("invalid_text", position=0, reason=reason) from error
    # Each text alone, so that the error names the one that the library gives up on.
    found = list[tokenizers.Encoding]()
    for position, item in enumerate(inputs):
        try:
            found += _encoded(encode, [item])
        except NunatakError as error:
            error.position = position
            raise
    return found


def _cut(found: tokenizers.Encoding, size: int) -> int:
    """Cut to at most `size` tokens; return the number of tokens left out.

    In two steps: each window of a pair also processes the overflow of the last cut, one token here.
    """
    left_out = max(0, len(found.ids) - size)
    found.truncate(size + 1)
    found.truncate(size)
    return left_out


def _drop_before(found: tokenizers.Encoding, place: int, num_tokens: int) -> None:
    """Drop the tokens that begin before a place in the text, and so many after them."""
    if place or num_tokens:
        num_before = sum(begin < place for begin, _ in found.offsets)
        found.truncate(max(0, len(found.ids) - num_before - num_tokens), direction="left")


def _windows(
    framing: Tokenizer,
    first: tokenizers.Encoding | None,
    text: tokenizers.Encoding,
    *,
    room: int,
    stride: int,
) -> Iterator[tokenizers.Encoding]:
    is_long = len(text.ids) > room
    text.truncate(room, stride=stride)
    # Without room for text, the overflow is the whole text as one window of any length.
    for piece in (text, *text.overflowing) if is_long and room else (text,):
        yield framing.post_process(piece) if first is None else framing.post_process(first, piece)


def _special_tokens(
    definition: dict[str, Any], single: tokenizers.Encoding
) -> dict[int | None, str]:
    added = {
        it["id"]: it["content"] for it in definition.get("added_tokens", ()) if it.get("special")
    }
    marked = zip(single.ids, single.tokens, single.special_tokens_mask, strict=True)
    return {**added, **{number: token for number, token, is_special in marked if is_special}}


def _without_special(
    definition: dict[str, Any], special: Mapping[int | None, str]
) -> dict[str, Any]:
    """The model's own vocabulary must change too: Unigram finds `</s>` there."""
    hidden = {content: UNREACHABLE + content for content in special.values()}
    model, added = definition["model"], definition.get("added_tokens", ())
    if isinstance(model["vocab"], dict):
        vocabulary = cast("dict[str, int]", model["vocab"])
        renamed: object = {hidden.get(it, it): number for it, number in vocabulary.items()}
    else:
        renamed = [[hidden.get(it, it), score] for it, score in model["vocab"]]
    tokens = [
        {**it, "content": hidden[it["content"]], "normalized": False} if it["id"] in special else it
        for it in added
    ]
    return {**definition, "model": {**model, "vocab": renamed}, "added_tokens": tokens}


MAX_TOKEN_ID: Final = 2**24
"""The largest published vocabularies have about a million tokens."""
MAX_GROWTH: Final = 64
"""Characters that all replacements together may make of one. Published ones make one or two."""
MAX_SPECIAL_TOKENS: Final = 64
"""Special tokens around a text or a pair. Published tokenizers have up to four."""
MAX_CHARS_PER_WORD: Final = 1000
"""Characters of a word that WordPiece divides in quadratic time. Published tokenizers have 100."""
REPLACEMENTS: Final = ("content", "prepend")
"""The settings of normalizers whose text stands in the place of a match or in front of a text."""


def is_panic(error: BaseException) -> bool:
    """Whether Rust code has given up. Its class is no `Exception`, and no module exports it."""
    return type(error).__name__ == "PanicException"


def check_bounds(definition: object) -> None:
    if not isinstance(definition, dict):
        return
    parts = cast("dict[str, object]", definition)
    model = parts.get("model")
    found = cast("dict[str, object]", model) if isinstance(model, dict) else {}
    added = parts.get("added_tokens")
    check_token_ids(found.get("vocab"))
    check_token_ids([it["id"] for it in _objects_in(added) if "id" in it])
    lengths = [
        len(text)
        for it in _objects_in(parts.get("normalizer"))
        for name in REPLACEMENTS
        if isinstance(text := it.get(name), str)
    ]
    growth = math.prod(max(1, length) for length in lengths)
    special = sum("SpecialToken" in it for it in _objects_in(parts.get("post_processor")))
    longest = found.get("max_input_chars_per_word")
    for name, value, limit in (
        ("characters that its normalizers make of one", growth, MAX_GROWTH),
        ("special tokens in its post_processor", special, MAX_SPECIAL_TOKENS),
        ("max_input_chars_per_word", longest, MAX_CHARS_PER_WORD),
    ):
        if isinstance(value, int) and value > limit:
            _refuse(name, limit, value)


def check_token_ids(vocabulary: object) -> None:
    if isinstance(vocabulary, dict):
        vocabulary = list(cast("dict[object, object]", vocabulary).values())
    ids = cast("list[object]", vocabulary) if isinstance(vocabulary, list) else []
    largest = max((it for it in ids if isinstance(it, int)), default=0)
    if largest > MAX_TOKEN_ID:
        _refuse("token ids", MAX_TOKEN_ID, largest)


def _refuse(name: str, limit: int, value: int) -> None:
    shown = value if value < 10**18 else "far more"
    raise UnsupportedBackboneError(
        f"expected at most {limit} as {name} of a tokenizer, got {shown}; take a checkpoint with "
        "another tokenizer"
    )


def patterns_in(definition: object) -> list[str]:
    return [text for it in _objects_in(definition) if isinstance(text := it.get("Regex"), str)]


def _objects_in(part: object) -> Iterator[Mapping[str, object]]:
    waiting = [part]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            fields = cast("dict[str, object]", found)
            yield fields
            waiting += [it for name, it in fields.items() if name not in {"vocab", "merges"}]
        elif isinstance(found, list):
            waiting += cast("list[object]", found)
