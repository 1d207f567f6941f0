"""The bases of all records and of all answers, and the types of their fields."""

import re
from datetime import datetime
from functools import partial
from operator import eq
from typing import Annotated, Any, Final, TypeVar, cast

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


class Record(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Base of everything stored: frozen, without unknown fields, without NaN."""


def later(default: Any, description: str | None = None, **bounds: Any) -> Any:  # noqa: ANN401 - as `Field`
    """Return a field that came after version 1 of its schema, which content leaves out by default.

    So content without the field keeps its digest.
    """
    return Field(default, description=description, exclude_if=partial(eq, default), **bounds)


MAX_PROBLEMS: Final = 10
"""Most wrong fields that an error names."""


def message_text(message: str) -> str:
    """Return a message of pydantic about a field, without names of classes."""
    told = message.removeprefix("Value error, ")
    return re.sub("a valid dictionary or instance of [A-Za-z]+", "an object", told)


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """Return the places of wrong fields, such as `keys.0.name`, and what is wrong; no values."""
    told = error.errors(include_url=False, include_context=False, include_input=False)[:100]
    return [
        (".".join(map(str, it["loc"])), message_text(it["msg"]))
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


def found_at(name: str, *path: str) -> AliasChoices:
    """Return where the value of a field is: under its name, or else at a path of attributes."""
    return AliasChoices(name, AliasPath(*path))


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
