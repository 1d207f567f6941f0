"""Rollouts: setting, changing and ending the candidates of aliases."""

from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference, check_alias_name, check_task_name
from nunatak_registry.aliases import (
    Candidate,
    CandidateEvent,
    CandidateEventKind,
    actor,
    check_candidate,
    check_expected_candidate,
)
from nunatak_registry.base import Store
from nunatak_registry.index.index import find_version, require_alias, require_task


class RolloutStore(Store):
    """The candidates of one registry."""

    def set(
        self, candidate: Candidate, *, expected_version: int | None = None, by: str | None = None
    ) -> CandidateEvent:
        """Let a version run next to an alias, in place of the earlier candidate of its role.

        Compare-and-swap: nothing changes unless `expected_version` is the candidate of that role
        now (0: there must be none; None: any or none). An equal candidate stays as it is.
        `by` is the author of the change; None: the user of the operating system.

        Raises:
            TaskNotFoundError: no such task.
            NunatakError: `alias_not_found`, the task has no such alias.
            VersionNotFoundError: the task has no such version.
            NunatakError: `invalid_candidate`, the version cannot run next to the alias's version.
            NunatakError: `candidate_conflict`, the alias has another candidate than expected.
        """
        task, alias, role = _checked_place(candidate.task, candidate.alias, candidate.role)
        with self._writing() as change:
            require_task(change, task)
            base = TaskReference(task=task, version=require_alias(change, task, alias))
            wanted = TaskReference(task=task, version=candidate.version)
            check_candidate(
                candidate,
                base=find_version(change, base).parse(),
                manifest=find_version(change, wanted).parse(),
            )
            current = change.candidate(task, alias, role)
            check_expected_candidate((task, alias, role), expected_version, current)
            if candidate == current:
                return change.candidate_history(task, alias, role)[-1]
            event = CandidateEvent(
                kind=CandidateEventKind.SET,
                candidate=candidate,
                at=self._clock(),
                by=actor(by),
            )
            change.set_candidate(event)
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
        """End a candidate, so that the alias's own version gets all requests; `by` as for `set`.

        Raises:
            TaskNotFoundError: no such task.
            NunatakError: `alias_not_found`, the task has no such alias.
            NunatakError: `candidate_not_found`, there is no candidate of this role.
            NunatakError: `candidate_conflict`, the candidate is not the expected version.
        """
        _checked_place(task, alias, role)
        with self._writing() as change:
            require_task(change, task)
            require_alias(change, task, alias)
            current = change.candidate(task, alias, role)
            check_expected_candidate((task, alias, role), expected_version, current)
            if current is None:
                raise NunatakError("candidate_not_found", task=task, alias=alias, role=role)
            event = CandidateEvent(
                kind=CandidateEventKind.END, candidate=current, at=self._clock(), by=actor(by)
            )
            change.end_candidate(event)
            return event

    def get(self, task: str, alias: str, role: CandidateRole) -> Candidate:
        """Return the candidate of a role of an alias.

        Raises:
            TaskNotFoundError: no such task.
            NunatakError: `alias_not_found`, the task has no such alias.
            NunatakError: `candidate_not_found`, there is none.
        """
        _checked_place(task, alias, role)
        with self._index.reading() as snapshot:
            require_task(snapshot, task)
            require_alias(snapshot, task, alias)
            found = snapshot.candidate(task, alias, role)
        if found is None:
            raise NunatakError("candidate_not_found", task=task, alias=alias, role=role)
        return found

    def history(self, task: str, alias: str) -> list[CandidateEvent]:
        """Return every change of the candidates of an alias, oldest first.

        Raises:
            TaskNotFoundError: no such task.
            NunatakError: `alias_not_found`, the task has no such alias.
        """
        check_alias_name(alias)
        with self._index.reading() as snapshot:
            require_task(snapshot, check_task_name(task))
            require_alias(snapshot, task, alias)
            return snapshot.candidate_history(task, alias)


def _checked_place(task: str, alias: str, role: CandidateRole) -> tuple[str, str, CandidateRole]:
    return check_task_name(task), check_alias_name(alias), role
