"""Callers: who sent a request, what they may do, and which tasks they know of."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EVERY_TASK: Final = "*"


class Scope(StrEnum):
    """What a caller may do; none of them implies another."""

    PREDICT = "predict"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """The tasks that a caller knows of, by name or by `prefix*`."""

    patterns: tuple[str, ...] = (EVERY_TASK,)

    @property
    def has_all(self) -> bool:
        """Whether no task is left out, now or later."""
        return EVERY_TASK in self.patterns

    def allows(self, task: str) -> bool:
        """Tell whether a task is on the list."""
        return any(_matches(pattern, task) for pattern in self.patterns)


ALL_TASKS: Final = TaskList()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks; `weight` is the share of a crowded server relative to other callers."""

    name: str
    scopes: frozenset[Scope]
    tasks: TaskList = ALL_TASKS
    weight: float = 1.0


ANYONE: Final = Caller(name="anonymous", scopes=frozenset(Scope))
"""The caller of a server without keys."""


def _matches(pattern: str, task: str) -> bool:
    prefix, star, _ = pattern.partition("*")
    return task.startswith(prefix) if star else task == pattern
