"""Alignment: from tokens back to the characters and words of their text.

Which tokens continue a word is judged as transformers' `TokenClassificationPipeline` does, so that
words of running text come out as its users know them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

import tokenizers

from nunatak_model.text.encoding import Alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What spellings of tokens mean."""

    marks_continuation: bool
    """Tokens inside a word carry a prefix ('##' of WordPiece) that the text has not."""
    unknown_id: int | None
    """The token that stands for what the vocabulary lacks."""

    @classmethod
    def of(cls, definition: Mapping[str, object]) -> Self:
        """Read the model section of a `tokenizer.json`."""
        model = cast("Mapping[str, object]", definition["model"])
        unknown = model.get("unk_id")
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            unknown = cast("dict[object, object]", vocabulary).get(model.get("unk_token"))
        return cls(
            marks_continuation=bool(model.get("continuing_subword_prefix")),
            unknown_id=unknown if isinstance(unknown, int) else None,
        )


def align(found: tokenizers.Encoding, text: str, vocabulary: Vocabulary) -> Alignment:
    """Tell where the tokens of `text`, the last text of `found`, come from."""
    tokens = list[str]()
    continues_word = list[bool]()
    for token, token_id, (begin, end) in zip(found.tokens, found.ids, found.offsets, strict=True):
        is_unknown = token_id == vocabulary.unknown_id
        tokens.append(text[begin:end] if is_unknown else token)
        if vocabulary.marks_continuation:
            continues = not is_unknown and len(token) != end - begin
        else:
            # Without marks, what follows no space goes on; punctuation then clings to its word.
            continues = not is_unknown and begin > 0 and " " not in text[begin - 1 : begin + 1]
        continues_word.append(continues)
    return Alignment(
        tokens=tuple(tokens),
        offsets=tuple(found.offsets),
        text_ids=tuple(found.sequence_ids),
        word_ids=tuple(found.word_ids),
        continues_word=tuple(continues_word),
    )
