"""A tokenized text: the input of the encoder, and the position of its tokens in the text."""

from dataclasses import dataclass, field
from typing import Final

TextInput = str | tuple[str, str]
"""A text, or a pair of texts that is read as one sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The origin of each token of an encoding; special tokens have none."""

    tokens: tuple[str, ...]
    """In the spelling of the vocabulary; an unknown token is spelt as in the text."""
    offsets: tuple[tuple[int, int], ...]
    """Begin and end in its text, in characters."""
    text_ids: tuple[int | None, ...]
    """0 for the first text, 1 for the second of a pair, None for special tokens."""
    word_ids: tuple[int | None, ...]
    """The word of each token, as the tokenizer splits words; None for special tokens."""
    continues_word: tuple[bool, ...]
    """Whether the token before belongs to the same word of running text."""
    num_repeated: int = 0
    """How many tokens of the last text, from its first here, the window before holds too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a text or pair that an encoding holds; lengths are in tokens."""

    index: int = 0
    """The place among the windows of the text."""
    num_repeated: int = 0
    """Tokens that the window before holds too, special tokens and a first text included."""
    num_left_out: int = 0
    """Tokens of the text that no encoding holds; the first window counts them for all."""


WHOLE: Final = Part()
"""All of a text, or its first window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Token ids and token types of one input; equal encodings are the same trunk row."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    alignment: Alignment | None = field(default=None, compare=False, repr=False)
    """No part of equality: the encoder does not read it."""
    part: Part = field(default=WHOLE, compare=False, repr=False)
    """No part of equality: equal windows of different texts are the same trunk row."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens, special tokens included."""
        return len(self.token_ids)
