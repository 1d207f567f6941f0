"""Values that count each access to an attribute."""

from collections import Counter
from dataclasses import fields
from typing import Any, TypeVar

ValueT = TypeVar("ValueT")


def watched(value: ValueT, looks: Counter[str]) -> ValueT:
    """Return the same dataclass value; each access to an attribute is counted in `looks`."""
    kind: Any = type(value)

    def look(self: object, name: str) -> object:
        looks[name] += 1
        return kind.__getattribute__(self, name)

    watching = type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": look})
    return watching(**{it.name: getattr(value, it.name) for it in fields(kind)})
