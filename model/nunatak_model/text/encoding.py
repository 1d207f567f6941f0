"""A tokenized text: the input of the encoder, and the position of its tokens in the text."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The origin of each token of an encoding; special tokens have no origin."""

    tokens: tuple[str, ...]
    """The tokens as the vocabulary spells them; unknown tokens as the text spells them."""
    offsets: tuple[tuple[int, int], ...]
    """Begin and end of each token in its text, in characters."""
    text_ids: tuple[int | None, ...]
    """0 for the first text, 1 for the second of a pair, None for special tokens."""
    word_ids: tuple[int | None, ...]
    """The word of each token, as the tokenizer splits words; None for special tokens."""
    continues_word: tuple[bool, ...]
    """Whether the token and the previous token belong to one word of running text."""
    num_repeated: int = 0
    """Number of tokens of the last text that the previous window also holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a text or pair that an encoding holds; lengths are in tokens."""

    index: int = 0
    num_repeated: int = 0
    """Tokens that the previous window also holds, with special tokens and a first text."""
    num_left_out: int = 0
    """Tokens that no encoding holds; the first window counts them for all windows."""
    num_unread: int = 0
    """Characters that no token stands for (see `unread`); counted like `num_left_out`."""


WHOLE: Final = Part()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Token ids and token types of one input; equal encodings are the same trunk row."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    alignment: Alignment | None = field(default=None, compare=False, repr=False)
    """Not compared, because the encoder does not read this field."""
    part: Part = field(default=WHOLE, compare=False, repr=False)
    """Not compared, because equal windows of different texts are the same trunk row."""
    _hash: int = field(init=False, compare=False, repr=False)
    """Kept, because each row of a batch is looked up several times, and the tuples are long."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.token_ids, self.type_ids)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)
