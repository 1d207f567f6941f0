"""Unread characters: letters and hidden text for which a model sees nothing.

A tokenizer drops some characters, and it replaces words that its vocabulary lacks by one unknown
token. Language models and people read many of these characters. A guard must know that it did not.

- Hidden characters that spell a text: tag characters and variation selectors (Unicode 16,
  sections 23.4 and 23.9). Variation selectors of emoji, symbols, digits and ideographs, and the
  three flags with tag characters are ordinary writing.
- Characters for private use, combining letters, and runs of invisible or control characters, whose
  kinds can spell a text as bits do. No ordinary writing has as many of them in a row.
- Letters and digits in an unknown token, also those that symbols show, such as squared letters and
  Braille, and characters that are newer than this Python's tables.
- A space, a control character or a lost character between letters that the tokenizer joins to one
  word.

Other characters are no text: emoji, combining marks, joiners, soft hyphens, direction marks.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import chain
from typing import Final

import tokenizers

FLAGS_WITH_TAGS: Final = tuple(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
SELECTOR: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
PRIVATE: Final = "\ue000-\uf8ff\U000f0000-\U0010fffd"
COMBINING_LETTERS: Final = "\u0363-\u036f\u1dd3-\u1df4\u2de0-\u2dff\ua674-\ua67b\ua69e\ua69f"
INVISIBLE: Final = "\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
BREAK: Final = "\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\ufffd"
"""Characters that part words for people and language models, though some tokenizers drop them."""
SPELLING: Final = f"{SELECTOR}\U000e0000-\U000e007f{PRIVATE}{COMBINING_LETTERS}"
HIDDEN: Final = re.compile(f"[{SPELLING}]+|[{INVISIBLE}{BREAK}]{{8,}}")
"""Characters that may hide a text."""
ANY: Final = re.compile(f"[{SPELLING}{INVISIBLE}{BREAK}]")
"""One character that needs a closer look. Most texts have none, so most texts cost one search."""
BREAKS: Final = re.compile(f"[{BREAK}]")
SELECTORS: Final = re.compile(f"[{SELECTOR}]")
PICTURES: Final = range(0x1F000, 0x1FB00)
"""The blocks of emoji and other pictures, to which each version of Unicode adds."""
HAS_BASE: Final = ("So", "Sm", "Sk", "Po", "Nd")
"""Kinds of characters that one variation selector may follow, next to ideographs."""
UNSPACED: Final = frozenset(
    ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")
)
"""Scripts without spaces between words, by the first word of a character's name."""


def is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").split(" ", 1)[0] in UNSPACED


@lru_cache(maxsize=4096)
def is_text(character: str) -> bool:
    name, category = unicodedata.name(character, ""), unicodedata.category(character)
    may_be_text = category in {"Cn", "Co"} and ord(character) not in PICTURES
    shows_text = " LETTER " in name or "DIGIT" in name or name.startswith("BRAILLE")
    return category[0] in "LN" or shows_text or may_be_text


def num_hidden(text: str, normalizer: tokenizers.normalizers.Normalizer | None) -> int:
    if normalizer is None or (text.isascii() and text.isprintable()) or not ANY.search(text):
        return 0
    for flag in FLAGS_WITH_TAGS:
        text = text.replace(flag, "")
    found = [it[0] for it in HIDDEN.finditer(text) if not _is_ordinary(text, it)]
    kept = set(normalizer.normalize_str(text)) if found else set[str]()
    return _num_glued(text, normalizer) + sum(it not in kept for it in chain.from_iterable(found))


def num_unknown(text: str, found: tokenizers.Encoding, unknown_id: int, *, text_id: int) -> int:
    tokens = zip(found.ids, found.sequence_ids, found.offsets, strict=True)
    return sum(
        sum(map(is_text, text[begin:end]))
        for token, origin, (begin, end) in tokens
        if token == unknown_id and origin == text_id
    )


def _num_glued(text: str, normalizer: tokenizers.normalizers.Normalizer) -> int:
    """Scripts without spaces write such characters between words, and their tokens need none."""
    dropped = {
        it for it in set(BREAKS.findall(text)) if normalizer.normalize_str(f"a{it}b") == "ab"
    }
    total = pending = 0
    before: str | None = None
    for character in text if dropped else "":
        if character in dropped:
            pending += before is not None
        elif character.isalnum():
            if pending and before and not (is_unspaced(before) or is_unspaced(character)):
                total += pending
            before, pending = character, 0
        elif unicodedata.category(character) not in {"Mn", "Me", "Cf"}:
            before, pending = None, 0
    return total


def _is_ordinary(text: str, found: re.Match[str]) -> bool:
    begin, end = found.span()
    before = text[begin - 1] if begin else ""
    if end - begin > 1 or not before or not SELECTORS.fullmatch(found[0]):
        return False
    return unicodedata.category(before) in HAS_BASE or is_unspaced(before)
