"""Bounds of a `tokenizer.json`, checked before the tokenizers library builds anything of it.

The library makes a list as long as the largest token id, applies replacements of any length, and
ends a match that backtracks too often with a panic.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, cast

from nunatak_model.errors import UnsupportedBackboneError

MAX_TOKEN_ID: Final = 2**24
"""The largest published vocabularies have about a million tokens."""
MAX_GROWTH: Final = 64
"""Characters that all replacements together may make of one. Published ones make one or two."""
MAX_SPECIAL_TOKENS: Final = 64
"""Special tokens around a text or a pair. Published tokenizers have up to four."""
MAX_CHARS_PER_WORD: Final = 1000
"""Characters of a word that WordPiece divides in quadratic time. Published tokenizers have 100."""
REPLACEMENTS: Final = ("content", "prepend")
"""The settings of normalizers whose text stands in the place of a match or in front of a text."""


def is_panic(error: BaseException) -> bool:
    """Whether Rust code has given up. Its class is no `Exception`, and no module exports it."""
    return type(error).__name__ == "PanicException"


def check_bounds(definition: object) -> None:
    if not isinstance(definition, dict):
        return
    parts = cast("dict[str, object]", definition)
    model = parts.get("model")
    found = cast("dict[str, object]", model) if isinstance(model, dict) else {}
    added = parts.get("added_tokens")
    check_token_ids(found.get("vocab"))
    check_token_ids([it["id"] for it in _objects_in(added) if "id" in it])
    lengths = [
        len(text)
        for it in _objects_in(parts.get("normalizer"))
        for name in REPLACEMENTS
        if isinstance(text := it.get(name), str)
    ]
    growth = math.prod(max(1, length) for length in lengths)
    special = sum("SpecialToken" in it for it in _objects_in(parts.get("post_processor")))
    longest = found.get("max_input_chars_per_word")
    for name, value, limit in (
        ("characters that its normalizers make of one", growth, MAX_GROWTH),
        ("special tokens in its post_processor", special, MAX_SPECIAL_TOKENS),
        ("max_input_chars_per_word", longest, MAX_CHARS_PER_WORD),
    ):
        if isinstance(value, int) and value > limit:
            _refuse(name, limit, value)


def check_token_ids(vocabulary: object) -> None:
    match vocabulary:
        case dict():
            ids = list(cast("dict[object, object]", vocabulary).values())
        case list():
            ids = cast("list[object]", vocabulary)
        case _:
            return
    largest = max((it for it in ids if isinstance(it, int)), default=0)
    if largest > MAX_TOKEN_ID:
        _refuse("token ids", MAX_TOKEN_ID, largest)


def _refuse(name: str, limit: int, value: int) -> None:
    shown = value if value < 10**18 else "far more"
    raise UnsupportedBackboneError(
        f"expected at most {limit} as {name} of a tokenizer, got {shown}; take a checkpoint with "
        "another tokenizer"
    )


def patterns_in(definition: object) -> list[str]:
    return [text for it in _objects_in(definition) if isinstance(text := it.get("Regex"), str)]


def _objects_in(part: object) -> Iterator[Mapping[str, object]]:
    waiting = [part]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            fields = cast("dict[str, object]", found)
            yield fields
            waiting += [it for name, it in fields.items() if name not in {"vocab", "merges"}]
        elif isinstance(found, list):
            waiting += cast("list[object]", found)
