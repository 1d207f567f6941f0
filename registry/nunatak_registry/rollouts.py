"""Rollouts: setting, changing and ending the candidates of aliases."""

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_registry.aliases import (
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    actor,
    check_candidate,
    check_expected,
)
from nunatak_registry.index.index import Store


class RolloutStore(Store):
    """The candidates of one registry."""

    def set(
        self, candidate: Candidate, *, expected_version: int | None = None, by: str | None = None
    ) -> CandidateEvent:
        """Let a version run next to an alias, in place of the earlier candidate of its role.

        Compare-and-swap: `candidate_conflict` unless `expected_version` is the candidate of that
        role now (0: none; None: any or none). An equal candidate stays as it is. Raises
        `invalid_candidate` if the version cannot run there. `by` is the author of the change;
        None: the user of the operating system.
        """
        task, alias, role = candidate.task, candidate.alias, candidate.role
        with self._writing() as change:
            base = TaskReference(task=task, version=change.require_alias(task, alias))
            wanted = TaskReference(task=task, version=candidate.version)
            check_candidate(
                candidate, base=change.find(base).parse(), manifest=change.find(wanted).parse()
            )
            current = change.candidate(task, alias, role)
            now = current.version if current else None
            check_expected(expected_version, now, task=task, alias=alias, role=role)
            if candidate == current:
                return change.candidate_history(task, alias, role)[-1]
            event = CandidateEvent(
                kind=CandidateEventKind.SET, candidate=candidate, at=self._clock(), by=actor(by)
            )
            change.change_candidate(event)
            return event

    def end(
        self,
        task: str,
        alias: str,
        role: CandidateRole,
        *,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> CandidateEvent:
        """End a candidate; the alias's own version gets all requests. Arguments as for `set`."""
        with self._writing() as change:
            change.require_alias(task, alias)
            current = change.candidate(task, alias, role)
            now = current.version if current else None
            check_expected(expected_version, now, task=task, alias=alias, role=role)
            if current is None:
                raise NunatakError("candidate_not_found", task=task, alias=alias, role=role)
            event = CandidateEvent(
                kind=CandidateEventKind.END, candidate=current, at=self._clock(), by=actor(by)
            )
            change.change_candidate(event)
            return event

    def get(self, task: str, alias: str, role: CandidateRole) -> Candidate:
        """Return the candidate of a role of an alias; raise `candidate_not_found` if none is."""
        with self._index.reading() as snapshot:
            snapshot.require_alias(task, alias)
            found = snapshot.candidate(task, alias, role)
        if found is None:
            raise NunatakError("candidate_not_found", task=task, alias=alias, role=role)
        return found

    def history(self, task: str, alias: str) -> list[CandidateEvent]:
        """Return every change of the candidates of an alias, oldest first."""
        with self._index.reading() as snapshot:
            snapshot.require_alias(task, alias)
            return snapshot.candidate_history(task, alias)
