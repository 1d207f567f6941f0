"""Documents of a registry that belong to no task: every version, of which the newest serves.

A document has no aliases. To go back to an older version, it is published again.
"""

from abc import abstractmethod
from typing import Generic

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import check_document_name
from nunatak_registry.aliases import actor
from nunatak_registry.index.index import Change, Store
from nunatak_registry.index.records import Document, DocumentKind, DocumentRecord, Published
from nunatak_registry.index.snapshot import Snapshot


class DocumentStore(Store, Generic[Document]):
    """The documents of one kind of one registry.

    With the kind `policy`: raises `policy_not_found` if there is no such policy or version, and
    `invalid_policy` if a stored document is damaged, or if a task cannot do what a new version
    asks of it or does not exist. Other kinds have codes of their own names.
    """

    kind: DocumentKind[Document]

    def put(self, document: Document, *, by: str | None = None) -> Published[Document]:
        """Publish a document under its next number; the new version serves from then on.

        A document that equals its newest version is not published twice: the newest version is
        returned. `by` is the author; None: the user of the operating system.
        """
        with self._writing() as change:
            return self._publish(change, document, by=by)

    def rollback(
        self, name: str, to: int | None = None, *, by: str | None = None
    ) -> Published[Document]:
        """Publish an older version again, under the next number.

        `to` is the older number; None: the one before the newest. The newest version itself is not
        published twice.
        """
        check_document_name(self.kind.name, name)
        with self._writing() as change:
            present = change.documents(self.kind.row, name)
            older = present[:-1] if to is None else [it for it in present if it.version == to]
            if not older:
                raise self.kind.not_found(f"{name}/{to or 'older'}" if present else name)
            return self._publish(change, older[-1].parse(self.kind).document, by=by)

    def history(self, name: str) -> list[Published[Document]]:
        """Return every version of a document, the newest first."""
        records = self._records(name)
        if not records:
            raise self.kind.not_found(name)
        return [record.parse(self.kind) for record in reversed(records)]

    def check(self, document: Document) -> None:
        """Return if the present task versions can do what a document asks of them."""
        with self._index.reading() as snapshot:
            self._check(document, snapshot)

    def get(self, name: str, version: int | None = None) -> Published[Document]:
        """Return one version of a document, or the newest one."""
        found = [it for it in self._records(name) if version in {None, it.version}]
        if not found:
            wanted = name if version is None else f"{name}/{version}"
            raise self.kind.not_found(wanted)
        return found[-1].parse(self.kind)

    def newest(self) -> list[Published[Document]]:
        """Return the newest version of each document, ordered by name."""
        return [
            record.parse(self.kind) for record in {it.name: it for it in self._records()}.values()
        ]

    def numbers(self) -> dict[str, int]:
        """Return the number of the newest version of each document, also of a damaged one."""
        return {record.name: record.version for record in self._records()}

    def take(self, name: str, source: "DocumentStore[Document]") -> list[int]:
        """Copy the missing versions of a document from another registry; return their numbers.

        Raises:
            NunatakError: `copy_conflict`, this registry contradicts the source.
        """
        wanted = source._records(name)  # noqa: SLF001 - another store of the same class
        versions = [record.parse(self.kind) for record in wanted]
        with self._writing() as change:
            present = [record.parse(self.kind) for record in change.documents(self.kind.row, name)]
            num_common = min(len(present), len(versions))
            if present[:num_common] != versions[:num_common]:
                raise self._conflict(name, "it has other versions there")
            missing = wanted[num_common:]
            if missing:
                self._check_copy(versions[-1].document, change)
            change.add_documents(self.kind.row, missing)
        return [record.version for record in missing]

    def _publish(
        self, change: Change, document: Document, *, by: str | None
    ) -> Published[Document]:
        self._check(document, change)
        present = change.documents(self.kind.row, document.name)
        if present and present[-1].parse(self.kind).document == document:
            return present[-1].parse(self.kind)
        published = Published(
            document=document, version=len(present) + 1, published_at=self._clock(), by=actor(by)
        )
        change.add_documents(self.kind.row, [DocumentRecord.of(published)])
        return published

    @abstractmethod
    def _check(self, document: Document, snapshot: Snapshot) -> None: ...

    def _check_copy(self, document: Document, snapshot: Snapshot) -> None:
        """Raise `copy_conflict` if a document of another registry has no place in this one."""

    def _conflict(self, name: str, reason: str) -> NunatakError:
        return NunatakError("copy_conflict", what=f"{self.kind.name} {name!r}", reason=reason)

    def _records(self, name: str | None = None) -> list[DocumentRecord]:
        if name is not None:
            check_document_name(self.kind.name, name)
        with self._index.reading() as snapshot:
            return snapshot.documents(self.kind.row, name)
