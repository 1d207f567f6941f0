"""The base of the wire format: strict, frozen, and without fields that nobody declared."""

from typing import cast

from pydantic import BaseModel, ConfigDict, model_validator

# Above every setting; what is longer is refused before its items are looked at, because listing
# the faults of a million items would hold up the event loop.
MAX_ITEMS = 4096
MAX_FIELDS = 64


class Message(BaseModel):
    """Base of everything that is sent or received."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: object) -> object:
        match value:
            case dict() if len(cast("dict[str, object]", value)) > MAX_FIELDS:
                raise ValueError(f"an object may have at most {MAX_FIELDS} fields")
            case _:
                return value
