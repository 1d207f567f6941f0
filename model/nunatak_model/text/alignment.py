"""Alignment: from tokens back to the characters and words of their text.

The rule for tokens that continue a word is the rule of transformers' `TokenClassificationPipeline`,
so that running text is split into the same words as in transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, cast

import tokenizers

from nunatak_model.text.encoding import Alignment

UNKNOWN_TOKENS = ("[UNK]", "<unk>")


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
