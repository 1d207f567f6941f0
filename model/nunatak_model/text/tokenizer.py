"""Texts to encodings, by the backbone's own `tokenizer.json`."""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence

import tokenizers
from tokenizers import Tokenizer, models

from nunatak_model.text.alignment import Vocabulary, align
from nunatak_model.text.encoding import Encoding, TextInput

MAX_QUESTION_TOKENS = 64
"""As in the reference implementation of BERT (Devlin et al. 2019) for SQuAD."""


class TextTokenizer:
    """The backbone's tokenizer; may be called from several threads at once."""

    def __init__(self, definition: bytes, *, num_token_types: int) -> None:
        """Read a `tokenizer.json`.

        Raises:
            ValueError: it is none, or none that the tokenizers library reads.
        """
        self.digest = hashlib.sha256(definition).hexdigest()
        self._num_token_types = num_token_types
        self._by_length: dict[int, Tokenizer] = {}
        self._without_framing: Tokenizer | None = None
        self._lock = threading.Lock()
        try:
            self._definition = definition.decode()
            # What the library refuses is refused now; the first text to come then uses it.
            self._unused: Tokenizer | None = Tokenizer.from_str(self._definition)
            # The post-processor alone: it puts the special tokens around a window.
            self._framing = Tokenizer(models.BPE())
            self._framing.post_processor = self._unused.post_processor
            self._vocabulary = Vocabulary.of(json.loads(definition))
            self._unused.no_truncation()
            pair = self._unused.encode("a", "a")
        except Exception as error:  # the library raises no other type
            raise ValueError(f"tokenizer.json holds no tokenizer: {error}") from error
        self.tells_texts_apart = any(self._types(pair))
        """Whether the second text of a pair has another token type than the first."""

    @property
    def definition(self) -> str:
        """The `tokenizer.json` it was made from."""
        return self._definition

    @property
    def unknown_id(self) -> int | None:
        """The token that stands for what the vocabulary lacks."""
        return self._vocabulary.unknown_id

    def encode(self, inputs: Sequence[TextInput], *, max_length: int) -> list[Encoding]:
        """Tokenize texts or pairs, special tokens included.

        What exceeds `max_length` tokens is cut, from the longer text of a pair first. The texts
        must hold no lone surrogates. The work is done in Rust, without the interpreter's lock.
        """
        tokenizer = self._truncating_at(max_length)
        return [
            Encoding(token_ids=tuple(found.ids), type_ids=self._types(found))
            for found in tokenizer.encode_batch_fast(list(inputs))
        ]

    def encode_windows(
        self, inputs: Sequence[TextInput], *, max_length: int, stride: int
    ) -> list[tuple[Encoding, ...]]:
        """Tokenize texts or pairs whole, as windows of at most `max_length` tokens, aligned.

        Neighbouring windows share `stride` tokens, but never more than half of what they hold. Of
        a pair only the second text is windowed; the first stands in every window, cut to
        `MAX_QUESTION_TOKENS` and to half of the window.
        """
        texts = [text for item in inputs for text in ((item,) if isinstance(item, str) else item)]
        bare = iter(self._bare().encode_batch(texts))
        found: list[tuple[Encoding, ...]] = []
        for item in inputs:
            first = None if isinstance(item, str) else next(bare)
            text = item if isinstance(item, str) else item[1]
            room = max_length - self._framing.num_special_tokens_to_add(first is not None)
            if first is not None:
                first.truncate(min(MAX_QUESTION_TOKENS, room // 2))
                room -= len(first.ids)
            shared = min(stride, room // 2)
            windows = _windows(self._framing, first, next(bare), room=room, stride=shared)
            found.append(
                tuple(
                    self._aligned(window, text, num_repeated=shared if number else 0)
                    for number, window in enumerate(windows)
                )
            )
        return found

    def join(self, tokens: Sequence[str]) -> str:
        """Spell tokens as running text, as far as the tokenizer can."""
        decoder = self._bare().decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def _types(self, found: tokenizers.Encoding) -> tuple[int, ...]:
        kinds, largest = tuple(found.type_ids), self._num_token_types - 1
        # Nearly always all are known, and one call tells.
        return (
            kinds
            if max(kinds, default=0) <= largest
            else tuple(min(kind, largest) for kind in kinds)
        )

    def _aligned(self, window: tokenizers.Encoding, text: str, *, num_repeated: int) -> Encoding:
        return Encoding(
            token_ids=tuple(window.ids),
            type_ids=self._types(window),
            alignment=align(window, text, self._vocabulary, num_repeated=num_repeated),
        )

    def _truncating_at(self, max_length: int) -> Tokenizer:
        # Truncation is state of a `Tokenizer`: one instance per length keeps callers apart.
        with self._lock:
            tokenizer = self._by_length.get(max_length)
            if tokenizer is None:
                tokenizer = self._untruncated()
                # The default strategy cuts the longer text first; the stub leaves it untyped.
                tokenizer.enable_truncation(max_length)  # pyright: ignore[reportUnknownMemberType]
                self._by_length[max_length] = tokenizer
            return tokenizer

    def _bare(self) -> Tokenizer:
        """Return the tokenizer without its post-processor, which cuts nothing and adds nothing.

        The post-processor of RoBERTa trims the offsets of tokens by the spaces in the tokens, also
        where no special tokens are asked for. So each window must meet the post-processor once.
        """
        with self._lock:
            if self._without_framing is None:
                self._without_framing = self._untruncated()
                self._without_framing.post_processor = None
            return self._without_framing

    def _untruncated(self) -> Tokenizer:
        tokenizer = self._unused or Tokenizer.from_str(self._definition)
        self._unused = None
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer


def _windows(
    framing: Tokenizer,
    first: tokenizers.Encoding | None,
    text: tokenizers.Encoding,
    *,
    room: int,
    stride: int,
) -> Iterator[tokenizers.Encoding]:
    text.truncate(room, stride=stride)
    for piece in (text, *text.overflowing):
        if first is None:
            yield framing.post_process(piece)
        else:
            yield framing.post_process(first, piece)
