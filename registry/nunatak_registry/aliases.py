"""Aliases: the history of an alias, and the candidates that run next to its version.

The history is append-only. Read from its start it works a stack: a promotion pushes a version, a
rollback pops back to an earlier one. Repeated rollbacks therefore go further back, and a promotion
after a rollback starts from where the rollback went.

A candidate is a version that is tried before the alias moves to it. A canary answers a share of
the alias's requests. A shadow runs on a share of the requests and answers none. An alias has at
most one of each. A move of the alias ends both, since they were compared with its earlier version.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from nunatak_contract.enums import CandidateRole
from nunatak_contract.manifest import TaskManifest
from nunatak_registry.errors import CandidateConflictError, InvalidCandidateError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTraffic:
    """A candidate's manifest, and its share of the requests."""

    manifest: TaskManifest
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The versions that run for requests by one reference, as of one moment."""

    manifest: TaskManifest
    canary: SharedTraffic | None = None
    shadow: SharedTraffic | None = None


def check_candidate(candidate: Candidate, *, base: TaskManifest, manifest: TaskManifest) -> None:
    """Refuse a candidate that cannot run next to the version `base` of its alias.

    Raises:
        InvalidCandidateError: it is that version itself, answers other questions, or has no share.
    """
    if not (math.isfinite(candidate.share) and 0 < candidate.share <= 1):
        reason = f"its share must be above 0 and at most 1, got {candidate.share}"
    elif candidate.version == base.version:
        reason = "the alias points to this version itself; choose another one"
    elif _question(manifest) != _question(base):
        reason = (
            f"it is of kind {_question(manifest)} and the alias points to one of kind "
            f"{_question(base)}; callers could not read its answers: publish it under another name"
        )
    else:
        return
    raise InvalidCandidateError(candidate.task, candidate.version, candidate.role, reason)


def _question(manifest: TaskManifest) -> str:
    problem = manifest.head.problem_type
    return manifest.head.kind if problem is None else f"{manifest.head.kind} ({problem})"


def check_expected_candidate(
    wanted: tuple[str, str, CandidateRole], expected: int | None, current: Candidate | None
) -> None:
    """Raise `CandidateConflictError` if another candidate stands there than expected (0: none)."""
    actual = 0 if current is None else current.version
    if expected is not None and expected != actual:
        raise CandidateConflictError(*wanted, expected=expected, actual=actual)
