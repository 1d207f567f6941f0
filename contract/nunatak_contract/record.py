"""The base of all records."""

from pydantic import BaseModel


class Record(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Base of everything stored: frozen, without unknown fields, without NaN."""
