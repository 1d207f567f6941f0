"""Published policies, their rows in the index, and the check of a policy against heads."""

from collections.abc import Callable
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
        """Return the version.

        Raises:
            NunatakError: `invalid_policy`, the row changed since it was published, or this release
                cannot read it.
        """
        reference = f"{self.name}/{self.version}"
        if digest_of(self.document.encode()) != self.digest:
            raise NunatakError(
                "invalid_policy",
                problem=f"the stored policy {reference} differs from the published policy; restore "
                "the index from a backup",
            )
        try:
            policy = Policy.model_validate_json(self.document)
            published_at = datetime.fromisoformat(self.published_at)
        except (ValidationError, ValueError) as error:
            raise NunatakError(
                "invalid_policy", problem=f"the stored policy {reference} cannot be read: {error}"
            ) from error
        if policy.name != self.name:
            raise NunatakError(
                "invalid_policy",
                problem=f"the policy stored as {reference} has the name {policy.name!r}",
            )
        return PublishedPolicy(
            policy=policy, version=self.version, published_at=published_at, by=self.by
        )


def check_policy(policy: Policy, head_of: HeadOf) -> None:
    """Return if the present task versions can decide every condition of a policy.

    Raises:
        NunatakError: `invalid_policy`, a task cannot decide a condition, or does not exist.
    """
    heads = dict[str, HeadRecord]()
    for text in policy.references:
        try:
            heads[text] = head_of(text)
        except NunatakError as error:
            raise _refusal(policy, str(error)) from error
    for rule in policy.rules:
        for condition in rule.conditions:
            head = heads[condition.task]
            problem = find_misfit(condition, head)
            if problem is not None:
                raise _refusal(policy, f"rule {rule.name!r}, task {condition.task!r}: {problem}")
        if rule.action is VerdictAction.MASK and not _can_mask(rule, heads.__getitem__):
            raise _refusal(
                policy,
                f"rule {rule.name!r} masks, so it needs tasks of token classification: every task "
                "with combine any, at least one with combine all",
            )


def _can_mask(rule: Rule, head_of: HeadOf) -> bool:
    has_spans = [head_of(it.task).kind is HeadKind.TOKEN_CLASSIFICATION for it in rule.conditions]
    return all(has_spans) if rule.combine is Combine.ANY else any(has_spans)


def _refusal(policy: Policy, problem: str) -> NunatakError:
    return NunatakError("invalid_policy", problem=f"policy {policy.name!r}: {problem}")
