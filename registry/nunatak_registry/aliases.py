"""Aliases: the history of an alias, and the candidates that run next to its version.

`Registry.promote` and `Registry.rollback` in store.py move an alias.

The history is append-only. The history describes a stack: a promotion pushes a version, and a
rollback pops back to an earlier version. Repeated rollbacks therefore go further back. A promotion
after a rollback pushes onto the version that the rollback restored.

A candidate is a version that is tried before the alias moves to it. A canary answers a share of the
alias's requests. A shadow runs on a share of the requests and answers none. An alias has at most
one of each. A move of the alias ends both candidates, because they were compared with its earlier
version.
"""

import getpass
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from nunatak_contract.cards import reads_text
from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import InvalidNameError, NunatakError
from nunatak_contract.manifest import TaskManifest

MAX_ACTOR_LENGTH = 200


def actor(given: str | None) -> str:
    """Return who changes an alias: the given name, checked, or the user of the operating system."""
    try:
        name = getpass.getuser() if given is None else given
    except (OSError, KeyError):
        name = f"user {os.getuid()}"
    if not (1 <= len(name) <= MAX_ACTOR_LENGTH and name.isprintable()):
        raise InvalidNameError("actor", name, f"1 to {MAX_ACTOR_LENGTH} printable characters")
    return name


class AliasEventKind(StrEnum):
    """The kind of a move of an alias."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasEvent:
    """One move of an alias; `from_version` is None if the alias was new."""

    task: str
    alias: str
    kind: AliasEventKind
    from_version: int | None
    to_version: int
    at: datetime
    by: str
    """The user of the operating system, or the key of a server, that moved it."""


def rollback_target(history: Sequence[AliasEvent], available: Collection[int]) -> int | None:
    """Return the target version of a rollback, or None if there is no earlier version.

    Deleted versions and the present one are skipped, so a rollback changes the served version.
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


class CandidateEventKind(StrEnum):
    """The event of a candidate: set or changed, or ended."""

    SET = "set"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version next to an alias, and the share of the alias's requests that the version gets."""

    task: str
    alias: str
    role: CandidateRole
    version: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateEvent:
    """One change of a candidate. An end records the version and share that the candidate had."""

    kind: CandidateEventKind
    candidate: Candidate
    at: datetime
    by: str
    """The user of the operating system, or the key of a server, that changed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasState:
    """One alias with everything that ever happened to it, oldest first."""

    moves: tuple[AliasEvent, ...] = ()
    changes: tuple[CandidateEvent, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    def begins_with(self, other: "AliasState") -> bool:
        """Return whether everything that happened to `other` happened first to this one."""
        return (
            self.moves[: len(other.moves)] == other.moves
            and self.changes[: len(other.changes)] == other.changes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTraffic:
    """A candidate's manifest, and its share of the requests."""

    manifest: TaskManifest
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The versions that run for requests by one reference, at one moment."""

    manifest: TaskManifest
    canary: SharedTraffic | None = None
    shadow: SharedTraffic | None = None


def check_candidate(candidate: Candidate, *, base: TaskManifest, manifest: TaskManifest) -> None:
    """Raise `invalid_candidate` if the candidate cannot run next to the version `base`."""
    if not (math.isfinite(candidate.share) and 0 < candidate.share <= 1):
        reason = f"its share must be above 0 and at most 1, got {candidate.share}"
    elif candidate.version == base.version:
        reason = "the alias points to this version itself; choose another one"
    elif _question(manifest) != _question(base):
        reason = (
            f"it is of kind {_question(manifest)} and the alias points to one of kind "
            f"{_question(base)}; callers could not read its answers; publish it under another name"
        )
    elif manifest.reads not in {None, base.reads}:
        reason = (
            f"it reads only {reads_text(manifest)}, and the version of the alias reads "
            f"{reads_text(base)}; it would refuse what callers send: publish it under another name"
        )
    elif (
        candidate.role is CandidateRole.SHADOW and manifest.backbone.digest != base.backbone.digest
    ):
        reason = (
            f"it runs on the backbone {manifest.backbone.name} and the version of the alias on "
            f"{base.backbone.name}, and a shadow runs in the batches of that version; compare the "
            "two with a canary, or on labelled examples with `nunatak evaluate`"
        )
    else:
        return
    raise NunatakError(
        "invalid_candidate",
        task=candidate.task,
        version=candidate.version,
        role=candidate.role,
        reason=reason,
    )


def _question(manifest: TaskManifest) -> str:
    problem = manifest.head.problem_type
    return manifest.head.kind if problem is None else f"{manifest.head.kind} ({problem})"


def check_expected(
    expected: int | None,
    current: int | None,
    *,
    task: str,
    alias: str,
    role: CandidateRole | None = None,
) -> None:
    """Raise a conflict unless `current` is expected (0: none is; None: any or none)."""
    if expected is None or expected == (current or 0):
        return
    none = "no version" if role is None else "none"
    wanted, actual = (f"version {it}" if it else none for it in (expected, current))
    if role is None:
        raise NunatakError("alias_conflict", task=task, alias=alias, expected=wanted, actual=actual)
    raise NunatakError(
        "candidate_conflict", task=task, alias=alias, role=role, expected=wanted, actual=actual
    )
