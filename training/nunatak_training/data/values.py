"""The rules of single values: what may be a text, a label, a number or a list in a row."""

import math
from collections.abc import Sequence
from typing import cast

from nunatak_training.errors import InvalidRowError

MAX_LABEL_CHARS = 200


def read_text(value: object, column: str, where: str) -> str:
    """Return a text that says something.

    Raises:
        InvalidRowError: it is no string, blank, or no Unicode text.
    """
    if not isinstance(value, str):
        raise InvalidRowError(where, f"{column!r} must be a string, got {kind_of(value)}")
    if not value.strip():
        raise InvalidRowError(where, f"{column!r} is empty; remove the row or give it a text")
    return _unicode(value, column, where)


def read_label(value: object, column: str, where: str) -> str:
    """Return the name of a label.

    Raises:
        InvalidRowError: it is neither a string, an integer nor a boolean, or too long or empty.
    """
    match value:
        case bool():
            label = "true" if value else "false"
        case int():
            label = str(value)
        case str():
            label = _unicode(value, column, where)
        case _:
            raise InvalidRowError(
                where, f"{column!r} must be a string, an integer or a boolean, got {kind_of(value)}"
            )
    if not 1 <= len(label) <= MAX_LABEL_CHARS:
        raise InvalidRowError(
            where, f"{column!r} must have 1 to {MAX_LABEL_CHARS} characters, got {len(label)}"
        )
    return label


def read_number(value: object, column: str, where: str) -> float:
    """Return a finite number, also where a file without types spells it as text.

    Raises:
        InvalidRowError: it is none.
    """
    number = math.nan
    if isinstance(value, (int, float, str)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, (str, float)) else kind_of(value)
        raise InvalidRowError(where, f"{column!r} must be a finite number, got {shown}")
    return number


def read_list(value: object, column: str, where: str) -> Sequence[object]:
    """Return a list.

    Raises:
        InvalidRowError: it is none.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidRowError(
            where,
            f"{column!r} must be a list, got {kind_of(value)}; CSV and TSV hold no lists, use "
            "JSONL or Parquet",
        )
    return cast("Sequence[object]", value)


def kind_of(value: object) -> str:
    """Name the type of a value, as a message tells it."""
    return "nothing" if value is None else type(value).__name__


def _unicode(value: str, column: str, where: str) -> str:
    # JSON can spell half a surrogate pair; no tokenizer and no UTF-8 file can hold one.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRowError(where, f"{column!r} holds a lone surrogate, which is no character")
    return value
