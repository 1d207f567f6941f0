"""Policies of a registry."""

from collections.abc import Callable, Mapping

from nunatak_contract.enums import Combine, HeadKind, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_contract.names import TaskReference
from nunatak_contract.policies import Policy, Rule, find_misfit
from nunatak_registry.documents import DocumentStore
from nunatak_registry.index.records import POLICIES
from nunatak_registry.index.snapshot import Snapshot

HeadOf = Callable[[str], HeadRecord]
"""Returns the head of the version that a task reference means."""


class PolicyStore(DocumentStore[Policy]):
    """The policies of one registry."""

    kind = POLICIES

    def _check(self, document: Policy, snapshot: Snapshot) -> None:
        check_policy(document, heads_in(snapshot))


def check_policy(policy: Policy, head_of: HeadOf) -> None:
    """Raise `invalid_policy` unless the present task versions can decide every condition."""
    heads, problems = dict[str, HeadRecord](), list[str]()
    for text in policy.references:
        try:
            heads[text] = head_of(text)
        except NunatakError as error:
            problems.append(str(error))
    for rule in policy.rules:
        known = [it for it in rule.conditions if it.task in heads]
        for condition in known:
            problem = find_misfit(condition, heads[condition.task])
            if problem is not None:
                problems.append(f"rule {rule.name!r}, task {condition.task!r}: {problem}")
        is_known = len(known) == len(rule.conditions)
        if rule.action is VerdictAction.MASK and is_known and not _can_mask(rule, heads):
            problems.append(
                f"rule {rule.name!r} masks, so it needs tasks of token classification: "
                "every task with combine any, at least one with combine all"
            )
    if problems:
        raise POLICIES.invalid(f"policy {policy.name!r}: {'; '.join(problems)}")


def _can_mask(rule: Rule, heads: Mapping[str, HeadRecord]) -> bool:
    kinds = [heads[it.task].kind is HeadKind.TOKEN_CLASSIFICATION for it in rule.conditions]
    return all(kinds) if rule.combine is Combine.ANY else any(kinds)


def heads_in(snapshot: Snapshot) -> HeadOf:
    """Return what gives the present head of a reference."""

    def head_of(text: str) -> HeadRecord:
        return snapshot.find(TaskReference.parse(text)).parse().head

    return head_of
