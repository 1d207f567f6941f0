"""Unread characters: letters and hidden text for which a model sees nothing.

A tokenizer drops some characters, and it replaces words that its vocabulary lacks by one unknown
token. Language models and people read many of these characters. A guard must know that it did not.

- Hidden characters that spell a text: tag characters and variation selectors (Unicode 16,
  sections 23.4 and 23.9). Variation selectors of emoji, symbols, digits and ideographs, and the
  three flags with tag characters are ordinary writing.
- Letters and digits in an unknown token, also those that symbols show, such as squared letters.
- A zero-width space between letters that the tokenizer joins to one word.

Other characters are no text: emoji, combining marks, joiners, soft hyphens, direction marks.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final

import tokenizers

FLAGS_WITH_TAGS: Final = tuple(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
SELECTOR: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
HIDDEN: Final = re.compile(rf"[{SELECTOR}\U000e0000-\U000e007f]+|(?<=\w)\u200b+(?=\w)")
"""Characters that may hide a text. Most texts have none, so most texts cost one search."""
HAS_BASE: Final = ("So", "Sm", "Sk", "Po", "Nd")
"""Kinds of characters that one variation selector may follow, next to ideographs."""
UNSPACED: Final = frozenset(
    ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")
)
"""Scripts without spaces between words, by the first word of a character's name."""


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter of a script without spaces between words."""
    return unicodedata.name(character, "").split(" ", 1)[0] in UNSPACED


@lru_cache(maxsize=4096)
def is_text(character: str) -> bool:
    """Return whether a character is a letter or a digit, or shows one."""
    name = unicodedata.name(character, "")
    return unicodedata.category(character)[0] in "LN" or " LETTER " in name or "DIGIT" in name


def num_hidden(text: str, normalizer: tokenizers.normalizers.Normalizer | None) -> int:
    """Return the number of hidden characters of a text that its tokenizer drops."""
    if normalizer is None:
        return 0
    for flag in FLAGS_WITH_TAGS:
        text = text.replace(flag, "")
    return sum(
        len(found[0])
        for found in HIDDEN.finditer(text)
        if not _is_ordinary(text, found) and _is_dropped(found[0], normalizer)
    )


def num_unknown(text: str, found: tokenizers.Encoding, unknown_id: int, *, text_id: int) -> int:
    """Return the number of letters and digits of a text that stand in unknown tokens."""
    tokens = zip(found.ids, found.sequence_ids, found.offsets, strict=True)
    return sum(
        sum(map(is_text, text[begin:end]))
        for token, origin, (begin, end) in tokens
        if token == unknown_id and origin == text_id
    )


def _is_dropped(hidden: str, normalizer: tokenizers.normalizers.Normalizer) -> bool:
    """Return whether a normalizer drops characters, or replaces tag characters by spaces."""
    kept = normalizer.normalize_str(f"a{hidden}b")
    return not set(hidden) & set(kept) and not (hidden[0] == "\u200b" and " " in kept)


def _is_ordinary(text: str, found: re.Match[str]) -> bool:
    """Return whether hidden characters are ordinary writing in their place."""
    begin, end = found.span()
    if text[begin] == "\u200b":
        # Such scripts write this space between words, and their tokens need no spaces.
        return is_unspaced(text[begin - 1]) or is_unspaced(text[end])
    before = text[begin - 1] if begin else ""
    is_selector = end - begin == 1 and not "\U000e0000" <= text[begin] <= "\U000e007f"
    if not is_selector or not before:
        return False
    return unicodedata.category(before) in HAS_BASE or is_unspaced(before)
