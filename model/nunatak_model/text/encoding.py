"""A tokenized text: the input of the encoder, and the origin of its tokens in the text.

The rule for tokens that continue a word is the rule of transformers' `TokenClassificationPipeline`,
so that running text is split into the same words as in transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, cast

import tokenizers

UNKNOWN_TOKENS = ("[UNK]", "<unk>")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The meaning of the spellings of tokens."""

    marks_continuation: bool
    """Whether tokens inside a word carry a prefix ('##' of WordPiece), which is not in the text."""
    unknown_id: int | None
    added: Mapping[int, str]
    """Tokens that occur in a text literally; a text may have spaces around such a token."""

    @classmethod
    def of(cls, definition: Mapping[str, object]) -> Self:
        model = cast("Mapping[str, object]", definition["model"])
        listed = cast("Sequence[Mapping[str, object]]", definition.get("added_tokens", ()))
        added = {cast("int", token["id"]): str(token["content"]) for token in listed}
        unknown = model.get("unk_id")
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            unknown = cast("dict[object, object]", vocabulary).get(model.get("unk_token"))
        if unknown is None:
            # A model of bytes lacks no character, but a text may contain its unknown token
            # literally.
            unknown = next((number for number, it in added.items() if it in UNKNOWN_TOKENS), None)
        return cls(
            marks_continuation=bool(model.get("continuing_subword_prefix")),
            unknown_id=unknown if isinstance(unknown, int) else None,
            added=added,
        )


def align(
    found: tokenizers.Encoding, text: str, vocabulary: Vocabulary, *, num_repeated: int = 0
) -> Alignment:
    """Find the origin of the tokens of `text`, the last text of `found`."""
    tokens = list[str]()
    continues_word = list[bool]()
    for spelt, token_id, (begin, end) in zip(found.tokens, found.ids, found.offsets, strict=True):
        token = vocabulary.added.get(token_id, spelt)
        is_unknown = token_id == vocabulary.unknown_id
        tokens.append(text[begin:end] if is_unknown else token)
        if vocabulary.marks_continuation:
            continues = not is_unknown and len(token) != end - begin
        else:
            # Without a prefix, a token continues a word if no space is before it. Punctuation joins
            # the word.
            continues = not is_unknown and begin > 0 and " " not in text[begin - 1 : begin + 1]
        continues_word.append(continues)
    return Alignment(
        tokens=tuple(tokens),
        offsets=tuple(found.offsets),
        text_ids=tuple(found.sequence_ids),
        word_ids=tuple(found.word_ids),
        continues_word=tuple(continues_word),
        num_repeated=num_repeated,
    )
