"""The rules of one row: which values make an example."""

from collections.abc import Mapping

from nunatak_training.data.examples import Example, ReadExample
from nunatak_training.errors import InvalidRowError, MissingColumnError

MAX_LABEL_CHARS = 200
REQUIRED_COLUMNS = ("text", "label")


def check_columns(columns: tuple[str, ...], where: str) -> None:
    """Raise `MissingColumnError` unless every required column is among `columns`."""
    for column in REQUIRED_COLUMNS:
        if column not in columns:
            raise MissingColumnError(where, column, columns)


def parse_row(row: Mapping[str, object], where: str) -> ReadExample:
    """Read one row; columns other than `text`, `text_pair` and `label` are ignored.

    Raises:
        MissingColumnError: the row has no `text` or no `label`.
        InvalidRowError: a value is of a wrong kind, empty or not Unicode text.
    """
    check_columns(tuple(row), where)
    pair = row.get("text_pair")
    example = Example(
        text=_text(row["text"], "text", where),
        text_pair=None if pair is None else _text(pair, "text_pair", where),
        label=_label(row["label"], where),
    )
    return ReadExample(where=where, example=example)


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRowError(where, f"{column!r} must be a string, got {_kind(value)}")
    if not value.strip():
        raise InvalidRowError(where, f"{column!r} is empty; remove the row or give it a text")
    return _unicode(value, column, where)


def _label(value: object, where: str) -> str:
    match value:
        case bool():
            label = "true" if value else "false"
        case int():
            label = str(value)
        case str():
            label = _unicode(value, "label", where)
        case _:
            raise InvalidRowError(
                where, f"'label' must be a string, an integer or a boolean, got {_kind(value)}"
            )
    if not 1 <= len(label) <= MAX_LABEL_CHARS:
        raise InvalidRowError(
            where, f"'label' must have 1 to {MAX_LABEL_CHARS} characters, got {len(label)}"
        )
    return label


def _unicode(value: str, column: str, where: str) -> str:
    # JSON can spell half a surrogate pair; no tokenizer and no UTF-8 file can hold one.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRowError(where, f"{column!r} holds a lone surrogate, which is no character")
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
