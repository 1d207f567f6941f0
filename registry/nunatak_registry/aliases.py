"""The history of an alias, and the laws of rollback.

The history is append-only. Read from its start it works a stack: a promotion pushes a version, a
rollback pops back to an earlier one. So rollback after rollback goes further back, and a promotion
after a rollback starts from where the rollback went.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class AliasEventKind(StrEnum):
    """How an alias came to move."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasEvent:
    """One move of an alias; `from_version` is None where the alias was new."""

    task: str
    alias: str
    kind: AliasEventKind
    from_version: int | None
    to_version: int
    at: datetime


def rollback_target(history: Sequence[AliasEvent], available: Collection[int]) -> int | None:
    """Return the version a rollback goes to, or None where there is nothing to go back to.

    Versions deleted since are skipped, and so is the version the alias already points to: a
    rollback always changes what is served. Deleted numbers are never given out again, so the
    history stays unambiguous.
    """
    *earlier, current = _promotions(history) or [0]
    candidates = (
        version for version in reversed(earlier) if version != current and version in available
    )
    return next(candidates, None)


def _promotions(history: Sequence[AliasEvent]) -> list[int]:
    stack: list[int] = []
    for event in history:
        match event.kind:
            case AliasEventKind.PROMOTE:
                stack.append(event.to_version)
            case AliasEventKind.ROLLBACK:
                stack.pop()
                while stack[-1] != event.to_version:
                    stack.pop()
    return stack
