"""The bases of all records and of all answers, and the types of their fields."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from operator import eq
from typing import Annotated, Any, Final, Self, TypeVar, cast

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue

from nunatak_contract.names import NAME_FORM, NAME_PATTERN


class Record(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Base of everything stored: frozen, without unknown fields, without NaN."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other fields, whose cached properties are computed anew."""
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - type(self).model_fields:
            del vars(copied)[name]
        return copied


def later(default: Any, description: str | None = None, **bounds: Any) -> Any:  # noqa: ANN401 - as `Field`
    """Return a field that came after version 1 of its schema, which content leaves out by default.

    So content without the field keeps its digest.
    """
    return Field(default, description=description, exclude_if=partial(eq, default), **bounds)


MAX_PROBLEMS: Final = 10
"""Most wrong fields that an error names."""


_WORDS: Final = (
    (r"^Value error, ", ""),
    (r", (unable to|got a number with) .*| after validation", ""),
    (r"^(Input should be|\w+ should have)( a valid)?", "expected"),
    (rf"^\w+ should match pattern '{re.escape(NAME_PATTERN)}'$", f"expected {NAME_FORM}"),
    (r"^\w+ should match pattern", "expected a text of the pattern"),
    (r"^expected (dictionary|object).*", "expected an object"),
    (r"^expected (list|tuple|set)$", "expected a list"),
    (r"^expected string$", "expected a text"),
    (r"^expected boolean$", "expected true or false"),
    (r"^expected integer$", "expected an integer"),
    (r"^expected number$", "expected a number"),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
    (r"^expected (greater|less) than", r"expected a number \1 than"),
    (r", not (\d+)$", r", got \1"),
    (r"^Input tag .* expected tags: ", "expected one of "),
    (r"^Unable to extract tag using discriminator (.*)", r"expected the field \1"),
    (r"^Invalid JSON", "expected JSON"),
)
"""Patterns in pydantic's messages, and our words for them."""
_KINDS: Final[Mapping[str, str]] = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "NoneType": "nothing",
}


def message_text(found: Mapping[str, Any]) -> str:
    """Return an error of pydantic about a field in our words, with the kind of the value alone."""
    match found["type"]:
        case "missing":
            return "expected a value, got none"
        case "extra_forbidden":
            return "there is no such field, so remove it"
        case kind:
            told = found["msg"]
            for pattern, words in _WORDS:
                told = re.sub(pattern, words, told)
    if not kind.endswith(("_type", "_parsing")):
        return told
    return f"{told}, got {_KINDS.get(type(found['input']).__name__, 'another kind')}"


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """Return the places of wrong fields, such as `keys.0.name`, and what is wrong; no values."""
    told = error.errors(include_url=False, include_context=False)[:100]
    return [
        (".".join(map(str, it["loc"])), message_text(it))
        for it in told
        # A list is also too short because its items are wrong.
        if it["type"] != "too_short"
        or all(other["loc"][: len(it["loc"])] != it["loc"] for other in told if other != it)
    ][:MAX_PROBLEMS]


def problems_text(error: ValidationError, whole: str = "document") -> str:
    """Return all problems as one line; `whole` names a place that is no field."""
    return "; ".join(f"{place or whole}: {problem}" for place, problem in problems_of(error))


MAX_REPR_CHARS: Final = 2_000
"""Most characters of a result that Python shows."""


class Result(BaseModel):
    """Base of every answer."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        from_attributes=True,
        json_schema_extra={"additionalProperties": False},
    )

    def __repr__(self) -> str:
        """Return the beginning of a long text, because answers come into logs and notebooks."""
        return _bounded(super().__repr__())

    def __str__(self) -> str:
        """Return the beginning of a long text."""
        return _bounded(super().__str__())


def _bounded(text: str) -> str:
    if len(text) <= MAX_REPR_CHARS:
        return text
    return f"{text[:MAX_REPR_CHARS]}... ({len(text):,} characters)"


def found_at(name: str, *path: str, **more: Any) -> Any:  # noqa: ANN401 - as `Field`
    """Return a field whose value is under its name, or else at a path of attributes."""
    return Field(validation_alias=AliasChoices(name, AliasPath(*path)), **more)


Moment = Annotated[
    datetime,
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time with its offset, such as `2026-11-26T12:00:00+00:00`."""


class _OneOrEach(BeforeValidator):
    """Takes the value of one input, or a list with a value for each input."""

    def __get_pydantic_json_schema__(
        self,
        schema: Any,  # noqa: ANN401 - a type of pydantic's core
        handler: GetJsonSchemaHandler,
    ) -> JsonSchemaValue:
        listed = handler(schema)
        return {"anyOf": [listed["items"], listed]}


def _as_each(sent: object) -> object:
    match sent:
        case list() | tuple():
            return cast("object", sent)
        case _:
            return (sent,)


T = TypeVar("T")
EachInput = Annotated[tuple[T, ...], _OneOrEach(_as_each)]
"""One value for each input: in JSON the value alone if one input was sent that is in no list."""
