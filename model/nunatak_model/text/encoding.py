"""Encodings: tokenized texts, the origin of their tokens in the text, and the parts of long texts.

The rule for tokens that continue a word is the rule of transformers' `TokenClassificationPipeline`,
so that running text is split into the same words as in transformers.

A long text is tokenized once, whole. Its special tokens show the bounds of its texts, and every
shorter encoding has the same special tokens around a slice of each text. All lengths are in tokens.

Unread characters: letters and hidden text for which a model sees nothing.

A tokenizer drops some characters, and it replaces words that its vocabulary lacks by one unknown
token. Language models and people read many of these characters. A guard must know that it did not.

- Hidden characters that spell a text: tag characters and variation selectors (Unicode 16,
  sections 23.4 and 23.9). Variation selectors of emoji, symbols, digits and ideographs, and the
  three flags with tag characters are ordinary writing.
- Characters for private use, combining letters, and runs of invisible characters, control
  characters or marks, whose kinds can spell a text as bits do. No ordinary writing has as many of
  them in a row.
- Letters, their marks and digits in an unknown token, also those that symbols show, such as squared
  letters and Braille, and characters that are newer than this Python's tables.
- A space, a control character or a lost character between letters that the tokenizer joins to one
  word.
- All of a text that leaves no token, because a task would answer about nothing. A pair has two
  texts. The mark of Unigram in front of a word is no token of a text.

Other characters are no text: emoji, marks that a tokenizer drops, joiners, soft hyphens.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count
from typing import Final, Self, cast

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
MARKS: Final = "".join(it for it in map(chr, range(0x10000)) if unicodedata.category(it)[0] == "M")
SILENT: Final = f"(?:[{INVISIBLE}{BREAK}{MARKS}]|(?!\\w)[\U00010000-\U0001efff])"
"""Above U+FFFF all signs below the pictures: single members of such a set would cost too much."""
HIDDEN: Final = re.compile(f"[{SPELLING}]+|{SILENT}{{8,}}")
"""Characters that may hide a text."""
ANY: Final = re.compile(f"[{SPELLING}{INVISIBLE}{BREAK}{MARKS}\U00010000-\U0001efff]")
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
    may_be_text = category in {"Cn", "Co", "Mc", "Mn"} and ord(character) not in PICTURES
    if SELECTORS.fullmatch(character) or name.startswith("TAG "):
        return False
    shows_text = " LETTER " in name or "DIGIT" in name or name.startswith("BRAILLE")
    return category[0] in "LN" or shows_text or may_be_text


def num_hidden(text: str, normalizer: tokenizers.normalizers.Normalizer | None) -> int:
    if normalizer is None or (text.isascii() and text.isprintable()) or not ANY.search(text):
        return 0
    hidden = _hidden(text)
    kept = set(normalizer.normalize_str(text)) if hidden else set[str]()
    return _num_glued(text, normalizer) + sum(text[it] not in kept for it in hidden)


def num_unknown(text: str, found: tokenizers.Encoding, unknown_id: int, *, text_id: int) -> int:
    hidden = _hidden(text)
    tokens = zip(found.ids, found.sequence_ids, found.offsets, strict=True)
    return sum(
        place in hidden or is_text(text[place])
        for token, origin, (begin, end) in tokens
        if token == unknown_id and origin == text_id
        for place in range(begin, end)
    )


def _hidden(text: str) -> set[int]:
    found = (it for it in HIDDEN.finditer(text) if not _is_ordinary(text, it))
    return set(chain.from_iterable(range(*it.span()) for it in found))


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
            if pending and before and not (is_unspaced(before) or is_unspaced(character)):  # pyrefly: ignore[redundant-condition] - it counts
                total += pending
            before, pending = character, 0
        elif unicodedata.category(character) not in {"Mn", "Me", "Cf"}:
            before, pending = None, 0
    return total


def _is_ordinary(text: str, found: re.Match[str]) -> bool:
    begin, end = found.span()
    before = text[begin - 1] if begin else ""
    if end - begin > 1 or not before or not SELECTORS.fullmatch(found[0]):
        return before + found[0] in FLAGS_WITH_TAGS
    return unicodedata.category(before) in HAS_BASE or is_unspaced(before)


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
        unknown, vocabulary = model.get("unk_id"), model.get("vocab")
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


Slice = tuple[int, int]
"""Begin and end of a part of a text, counted in tokens of that text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongText:
    """A text or pair with its special tokens, and the position of its texts among all tokens."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    num_unread: int
    """Number of characters that no token stands for."""

    @property
    def num_special(self) -> int:
        return len(self.token_ids) - sum(self.sizes)

    def cut(self, max_length: int) -> Encoding:
        """The beginning. In a pair the longer text is cut first, as in `tokenizers`."""
        room = max(0, max_length - self.num_special)
        sizes = (min(room, self.sizes[0]),) if len(self.sizes) == 1 else self._longest_first(room)
        left_out = sum(self.sizes) - sum(sizes)
        part = Part(num_left_out=left_out, num_unread=self.num_unread)
        return self._encoding([(0, size) for size in sizes], part)

    def windows(self, max_length: int, *, stride: int) -> Iterator[Encoding]:
        """Overlapping windows of the last text, each with the first text of a pair before it.

        Adjacent windows share `stride` tokens, but never more than half of a window. The first text
        is cut to the room that the second text leaves, or to half of a window.
        """
        *first, size = self.sizes
        room = max(0, max_length - self.num_special)
        kept = [min(length, max(room - room // 2, room - size)) for length in first]
        room -= sum(kept)
        if room < 1:
            yield self.cut(max_length)
            return
        stride = min(stride, room // 2)
        begins = range(0, max(1, size - stride), room - stride)
        whole = Part(num_left_out=sum(first) - sum(kept), num_unread=self.num_unread)
        parts = parts_of_windows(self.num_special + sum(kept), stride, whole)
        for begin, part in zip(begins, parts, strict=False):
            held = [*((0, length) for length in kept), (begin, min(begin + room, size))]
            yield self._encoding(held, part)

    def _longest_first(self, room: int) -> tuple[int, int]:
        """The shorter text is kept whole if it has at most half."""
        first, second = self.sizes
        if first + second <= room:
            return first, second
        shorter = min(first, second, room // 2)
        longer = room - shorter
        return (longer, shorter) if first > second else (shorter, longer)

    def _encoding(self, held: list[Slice], part: Part) -> Encoding:
        return Encoding(
            token_ids=self._around(self.token_ids, held),
            type_ids=self._around(self.type_ids, held),
            part=part,
        )

    def _around(self, values: tuple[int, ...], held: list[Slice]) -> tuple[int, ...]:
        found, end = tuple[int, ...](), 0
        for (start, stop), begin, size in zip(held, self.begins, self.sizes, strict=True):
            found += values[end:begin] + values[begin + start : begin + stop]
            end = begin + size
        return found + values[end:]


def parts_of_windows(num_around: int, stride: int, whole: Part) -> Iterator[Part]:
    """Without end. Of each window, `num_around` tokens are not text."""
    yield whole
    for index in count(1):
        yield Part(index=index, num_repeated=num_around + stride)


def long_text(whole: Encoding, found: tokenizers.Encoding) -> LongText:
    text_ids = found.sequence_ids
    num_texts = 2 if 1 in text_ids else 1
    sizes = tuple(text_ids.count(text) for text in range(num_texts))
    return LongText(
        token_ids=whole.token_ids,
        type_ids=whole.type_ids,
        begins=tuple(text_ids.index(text) if size else 0 for text, size in enumerate(sizes)),
        sizes=sizes,
        num_unread=whole.part.num_unread,
    )
