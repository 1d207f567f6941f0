"""Rows of versions and of policies, and the documents in them."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.policies import Policy
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.errors import InvalidManifestError

NUM_PARSED: Final = 1024
"""Most parsed manifests that are kept."""
MAX_KEPT_CHARS: Final = 65_536
"""Longest text of a manifest that is kept parsed; most have some thousand characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One row of the index: a manifest as text, with the digest of the published text."""

    task: str
    version: int
    manifest: str
    manifest_digest: str

    @property
    def reference(self) -> str:
        """The reference that names exactly this version."""
        return f"{self.task}/{self.version}"

    def parse(self) -> TaskManifest:
        """Return the manifest; `InvalidManifestError` if the text was changed or is unreadable."""
        return (_parse if len(self.manifest) <= MAX_KEPT_CHARS else _parse_anew)(self)


def _parse_anew(record: VersionRecord) -> TaskManifest:
    if digest_of(record.manifest.encode()) != record.manifest_digest:
        raise InvalidManifestError(
            f"the stored manifest of {record.reference} differs from the published manifest; "
            "restore the index from a backup"
        )
    try:
        manifest = TaskManifest.model_validate_json(record.manifest)
    except ValidationError as error:
        raise InvalidManifestError(
            f"the manifest of {record.reference} does not follow schema version 1: {error}"
        ) from error
    if (manifest.task, manifest.version) != (record.task, record.version):
        raise InvalidManifestError(
            f"the manifest stored as {record.reference} says it is {manifest.reference}"
        )
    return manifest


# A text that was checked and parsed once gives the same manifest again.
_parse = lru_cache(NUM_PARSED)(_parse_anew)


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
            raise invalid_policy(
                f"the stored policy {reference} differs from the published policy; restore the "
                "index from a backup"
            )
        try:
            policy = Policy.model_validate_json(self.document)
            published_at = datetime.fromisoformat(self.published_at)
        except (ValidationError, ValueError) as error:
            raise invalid_policy(
                f"the stored policy {reference} cannot be read: {error}"
            ) from error
        if policy.name != self.name:
            raise invalid_policy(f"the policy stored as {reference} has the name {policy.name!r}")
        return PublishedPolicy(
            policy=policy, version=self.version, published_at=published_at, by=self.by
        )


def invalid_policy(problem: str) -> NunatakError:
    """Return the error of a policy that cannot be published or read."""
    return NunatakError("invalid_policy", problem=problem)
