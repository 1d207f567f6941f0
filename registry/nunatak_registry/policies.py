"""Published policies, their rows in the index, and the check of a policy against heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from nunatak_contract.enums import Combine, HeadKind, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_contract.policies import Policy, Rule, find_misfit
from nunatak_registry.blobs.blobs import digest_of

HeadOf = Callable[[str], HeadRecord]
"""Returns the head of the version that a task reference means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPolicy:
    """One version of a policy."""

    policy: Policy
    version: int
    published_at: datetime
    by: str
    """The user of the operating system who published the version."""

    @property
    def reference(self) -> str:
        """The name and the number."""
        return f"{self.policy.name}/{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """One row of the index: a policy as text, with the digest of the published text."""

    name: str
    version: int
    document: str
    digest: str
    published_at: str
    by: str

    @classmethod
    def of(cls, published: PublishedPolicy) -> "PolicyRecord":
        """Return the row of a version."""
        document = published.policy.model_dump_json()
        return cls(
            name=published.policy.name,
            version=published.version,
            document=document,
            digest=digest_of(document.encode()),
            published_at=published.published_at.isoformat(),
            by=published.by,
        )

    def parse(self) -> PublishedPolicy:
        """Return the version, unless its row is damaged (`invalid_policy`)."""
        reference = f"{self.name}/{self.version}"
        if digest_of(self.document.encode()) != self.digest:
            raise _invalid(
                f"the stored policy {reference} differs from the published policy; restore the "
                "index from a backup"
            )
        try:
            policy = Policy.model_validate_json(self.document)
            published_at = datetime.fromisoformat(self.published_at)
        except (ValidationError, ValueError) as error:
            raise _invalid(f"the stored policy {reference} cannot be read: {error}") from error
        if policy.name != self.name:
            raise _invalid(f"the policy stored as {reference} has the name {policy.name!r}")
        return PublishedPolicy(
            policy=policy, version=self.version, published_at=published_at, by=self.by
        )


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
            raise _invalid(f"{subject}: {error}") from error
    for rule in policy.rules:
        for condition in rule.conditions:
            problem = find_misfit(condition, heads[condition.task])
            if problem is not None:
                where = f"rule {rule.name!r}, task {condition.task!r}"
                raise _invalid(f"{subject}: {where}: {problem}")
        if rule.action is VerdictAction.MASK and not _can_mask(rule, heads):
            raise _invalid(
                f"{subject}: rule {rule.name!r} masks, so it needs tasks of token classification: "
                "every task with combine any, at least one with combine all"
            )


def _can_mask(rule: Rule, heads: Mapping[str, HeadRecord]) -> bool:
    kinds = [heads[it.task].kind is HeadKind.TOKEN_CLASSIFICATION for it in rule.conditions]
    return all(kinds) if rule.combine is Combine.ANY else any(kinds)


def _invalid(problem: str) -> NunatakError:
    return NunatakError("invalid_policy", problem=problem)
