"""Rows of versions, of policies and of question cards, and the documents in them."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, Generic, TypeAlias, TypeVar

from pydantic import ValidationError

from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.policies import Policy
from nunatak_contract.questions import QuestionCard
from nunatak_contract.record import problems_text
from nunatak_registry.blobs.blobs import digest_of
from nunatak_registry.errors import InvalidManifestError, StoreUnavailableError
from nunatak_registry.index.schema import DocumentRow, PolicyRow, QuestionRow

NUM_PARSED: Final = 1024
"""Most parsed manifests that are kept."""
MAX_KEPT_CHARS: Final = 65_536
"""Longest text of a manifest that is kept parsed; most have some thousand characters."""


@contextmanager
def damage_of(what: str) -> Generator[None]:
    """Name the damaged part of the index if its values cannot be read."""
    try:
        yield
    except (ValueError, TypeError) as error:
        # A column of SQLite may hold values of another type.
        raise StoreUnavailableError(
            f"{what} in the index cannot be read: {error}; restore the index from a backup"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One row of the index: a manifest as text, with the digest of the published text."""

    task: str
    version: int
    manifest: str
    manifest_digest: str
    published_at: str

    @property
    def reference(self) -> str:
        return f"{self.task}/{self.version}"

    @property
    def moment(self) -> datetime:
        """The time of the publication."""
        with damage_of(f"the times of the versions of task {self.task!r}"):
            return datetime.fromisoformat(self.published_at)

    def parse(self) -> TaskManifest:
        return (_parse if len(self.manifest) <= MAX_KEPT_CHARS else _parse_anew)(self)

    def readable(self) -> TaskManifest | None:
        """Return the manifest, or None if it is damaged."""
        try:
            return self.parse()
        except InvalidManifestError:
            return None


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
            f"the manifest of {record.reference} does not follow schema version 1: "
            f"{problems_text(error)}"
        ) from error
    if (manifest.task, manifest.version) != (record.task, record.version):
        raise InvalidManifestError(
            f"the manifest stored as {record.reference} says it is {manifest.reference}"
        )
    return manifest


# A text that was checked and parsed once gives the same manifest again.
_parse = lru_cache(NUM_PARSED)(_parse_anew)
Document = TypeVar("Document", Policy, QuestionCard)


# A generic class with slots cannot be made by the name of one of its kinds.
@dataclass(frozen=True, kw_only=True)
class Published(Generic[Document]):
    """One version of a document: of a policy or of a question card."""

    document: Document
    version: int
    published_at: datetime
    by: str
    """The user of the operating system who published the version."""

    @property
    def reference(self) -> str:
        return f"{self.document.name}/{self.version}"


PublishedPolicy: TypeAlias = Published[Policy]
PublishedCard: TypeAlias = Published[QuestionCard]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind(Generic[Document]):
    """A kind of document, with its table."""

    name: str
    model: type[Document]
    row: type[DocumentRow]
    invalid: Callable[[str], NunatakError]
    """Makes the error of a document that cannot be published or read, from the problem."""
    not_found: Callable[[str], NunatakError]
    """Makes the error of a document or version that nobody has published, from the reference."""


POLICIES: Final = DocumentKind(
    name="policy",
    model=Policy,
    row=PolicyRow,
    invalid=lambda problem: NunatakError("invalid_policy", problem=problem),
    not_found=lambda reference: NunatakError("policy_not_found", policy=reference),
)
QUESTIONS: Final = DocumentKind(
    name="question card",
    model=QuestionCard,
    row=QuestionRow,
    invalid=lambda problem: NunatakError("invalid_question", problem=problem),
    not_found=lambda reference: NunatakError("question_not_found", question=reference),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRecord:
    """One row of the index: a document as text, with the digest of the published text."""

    name: str
    version: int
    document: str
    digest: str
    published_at: str
    by: str

    @classmethod
    def of(cls, published: Published[Document]) -> "DocumentRecord":
        document = published.document.model_dump_json()
        return cls(
            name=published.document.name,
            version=published.version,
            document=document,
            digest=digest_of(document.encode()),
            published_at=published.published_at.isoformat(),
            by=published.by,
        )

    def parse(self, kind: DocumentKind[Document]) -> Published[Document]:
        """Return the version, unless its row is damaged (`invalid_policy`, `invalid_question`)."""
        reference = f"{self.name}/{self.version}"
        if digest_of(self.document.encode()) != self.digest:
            raise kind.invalid(
                f"the stored {kind.name} {reference} differs from the published {kind.name}; "
                "restore the index from a backup"
            )
        try:
            document = kind.model.model_validate_json(self.document)
            published_at = datetime.fromisoformat(self.published_at)
        except ValueError as error:
            told = problems_text(error) if isinstance(error, ValidationError) else error
            raise kind.invalid(
                f"the stored {kind.name} {reference} cannot be read: {told}"
            ) from error
        if document.name != self.name:
            raise kind.invalid(
                f"the {kind.name} stored as {reference} has the name {document.name!r}"
            )
        return Published(
            document=document, version=self.version, published_at=published_at, by=self.by
        )
