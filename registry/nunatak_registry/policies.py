"""Policies of a registry: every published version, of which the newest one serves.

A policy has no aliases. To go back to an older version, its document is published again.
"""

from collections.abc import Callable, Mapping

from nunatak_contract.enums import Combine, HeadKind, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_contract.names import TaskReference, check_policy_name
from nunatak_contract.policies import Policy, Rule, find_misfit
from nunatak_registry.aliases import actor
from nunatak_registry.index.index import Change, Store
from nunatak_registry.index.records import PolicyRecord, PublishedPolicy, invalid_policy
from nunatak_registry.index.snapshot import Snapshot

HeadOf = Callable[[str], HeadRecord]
"""Returns the head of the version that a task reference means."""


class PolicyStore(Store):
    """The policies of one registry.

    Raises `policy_not_found` if there is no such policy or version, and `invalid_policy` if a
    stored document is damaged, or if a task of a new version cannot decide a condition or does not
    exist.
    """

    def put(self, policy: Policy, *, by: str | None = None) -> PublishedPolicy:
        """Publish a policy under its next number; the new version serves from then on.

        A policy that equals its newest version is not published twice: the newest version is
        returned. `by` is the author; None: the user of the operating system.
        """
        with self._writing() as change:
            return self._publish(change, policy, by=by)

    def rollback(
        self, name: str, to: int | None = None, *, by: str | None = None
    ) -> PublishedPolicy:
        """Publish an older version again, under the next number.

        `to` is the older number; None: the one before the newest. The newest version itself is not
        published twice.
        """
        check_policy_name(name)
        with self._writing() as change:
            present = change.policies(name)
            older = present[:-1] if to is None else [it for it in present if it.version == to]
            if not older:
                raise NunatakError(
                    "policy_not_found", policy=f"{name}/{to or 'older'}" if present else name
                )
            return self._publish(change, older[-1].parse().policy, by=by)

    def history(self, name: str) -> list[PublishedPolicy]:
        """Return every version of a policy, the newest first."""
        records = self._records(name)
        if not records:
            raise NunatakError("policy_not_found", policy=name)
        return [record.parse() for record in reversed(records)]

    def check(self, policy: Policy) -> None:
        """Return if the present task versions can decide every condition of a policy."""
        with self._index.reading() as snapshot:
            check_policy(policy, _heads_in(snapshot))

    def get(self, name: str, version: int | None = None) -> PublishedPolicy:
        """Return one version of a policy, or the newest one."""
        found = [it for it in self._records(name) if version in {None, it.version}]
        if not found:
            wanted = name if version is None else f"{name}/{version}"
            raise NunatakError("policy_not_found", policy=wanted)
        return found[-1].parse()

    def newest(self) -> list[PublishedPolicy]:
        """Return the newest version of each policy, ordered by name."""
        return [record.parse() for record in {it.name: it for it in self._records()}.values()]

    def numbers(self) -> dict[str, int]:
        """Return the number of the newest version of each policy, also of a damaged one."""
        return {record.name: record.version for record in self._records()}

    def take(self, name: str, source: "PolicyStore") -> list[int]:
        """Copy the missing versions of a policy from another registry; return their numbers.

        Raises:
            NunatakError: `copy_conflict`, this registry contradicts the source.
        """
        wanted = source._records(name)  # noqa: SLF001 - another store of the same class
        versions = [record.parse() for record in wanted]
        with self._writing() as change:
            present = [record.parse() for record in change.policies(name)]
            num_common = min(len(present), len(versions))
            if present[:num_common] != versions[:num_common]:
                raise NunatakError(
                    "copy_conflict", what=f"policy {name!r}", reason="it has other versions there"
                )
            missing = wanted[num_common:]
            change.add_policies(missing)
        return [record.version for record in missing]

    def _publish(self, change: Change, policy: Policy, *, by: str | None) -> PublishedPolicy:
        check_policy(policy, _heads_in(change))
        present = change.policies(policy.name)
        if present and present[-1].parse().policy == policy:
            return present[-1].parse()
        published = PublishedPolicy(
            policy=policy, version=len(present) + 1, published_at=self._clock(), by=actor(by)
        )
        change.add_policies([PolicyRecord.of(published)])
        return published

    def _records(self, name: str | None = None) -> list[PolicyRecord]:
        if name is not None:
            check_policy_name(name)
        with self._index.reading() as snapshot:
            return snapshot.policies(name)


def _heads_in(snapshot: Snapshot) -> HeadOf:
    def head_of(text: str) -> HeadRecord:
        return snapshot.find(TaskReference.parse(text)).parse().head

    return head_of


def check_policy(policy: Policy, head_of: HeadOf) -> None:
    """Return if the present task versions can decide every condition of a policy.

    Raises:
        NunatakError: `invalid_policy`, a task cannot decide a condition, or does not exist.
    """
    subject, heads = f"policy {policy.name!r}", dict[str, HeadRecord]()
    for text in policy.references:
        try:
            heads[text] = head_of(text)
        except NunatakError as error:
            raise invalid_policy(f"{subject}: {error}") from error
    for rule in policy.rules:
        for condition in rule.conditions:
            problem = find_misfit(condition, heads[condition.task])
            if problem is not None:
                where = f"rule {rule.name!r}, task {condition.task!r}"
                raise invalid_policy(f"{subject}: {where}: {problem}")
        if rule.action is VerdictAction.MASK and not _can_mask(rule, heads):
            raise invalid_policy(
                f"{subject}: rule {rule.name!r} masks, so it needs tasks of token classification: "
                "every task with combine any, at least one with combine all"
            )


def _can_mask(rule: Rule, heads: Mapping[str, HeadRecord]) -> bool:
    kinds = [heads[it.task].kind is HeadKind.TOKEN_CLASSIFICATION for it in rule.conditions]
    return all(kinds) if rule.combine is Combine.ANY else any(kinds)
