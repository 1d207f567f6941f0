"""Literal reading: a `tokenizer.json` that reads special tokens in a text as plain text."""

from collections.abc import Mapping
from typing import Any, Final, cast

import tokenizers

UNREACHABLE: Final = "\0"
"""Begins the names of tokens that no text can hold, because no text holds NUL."""


def special_tokens(
    definition: dict[str, Any], single: tokenizers.Encoding
) -> dict[int | None, str]:
    added = {
        it["id"]: it["content"] for it in definition.get("added_tokens", ()) if it.get("special")
    }
    marked = zip(single.ids, single.tokens, single.special_tokens_mask, strict=True)
    return {**added, **{number: token for number, token, is_special in marked if is_special}}


def without_special(
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
