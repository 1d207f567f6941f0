"""The base of all records."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of everything stored: frozen, strict about fields, NaN-free."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
