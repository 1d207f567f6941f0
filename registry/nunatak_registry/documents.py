"""Documents of a registry that belong to no task: every version, of which the newest serves.

A document has no aliases. To go back to an older version, it is published again.

Policies and question cards are documents. One question has at most one card.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Generic, Self

from nunatak_contract.enums import Combine, HeadKind, VerdictAction
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import DEFAULT_ALIAS, TaskReference, check_document_name
from nunatak_contract.policies import Policy, Rule, compiled, find_misfit
from nunatak_contract.questions import QuestionCard, find_card_misfit
from nunatak_registry.aliases import Candidate, actor
from nunatak_registry.index.change import Change
from nunatak_registry.index.index import Store
from nunatak_registry.index.records import (
    POLICIES,
    QUESTIONS,
    Document,
    DocumentKind,
    DocumentRecord,
    Published,
    PublishedCard,
)
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
            if present and not older and to is None:
                raise NunatakError("no_previous_version", subject=f"{self.kind.name} {name!r}")
            if not older:
                raise self.kind.not_found(f"{name}/{to}" if present else name)
            return self._publish(change, older[-1].parse(self.kind).document, by=by)

    def history(self, name: str) -> list[Published[Document]]:
        """Return every version of a document, the newest first."""
        records = self._records(name)
        if not records:
            raise self.kind.not_found(name)
        return [record.parse(self.kind) for record in reversed(records)]

    def asking(self, snapshot: Snapshot, task: str, version: int) -> Iterator[str]:
        """Yield the documents that ask a version by its number, or by a name that it alone has."""
        is_last = [it.version for it in snapshot.all_versions(task)] == [version]
        meant = {f"{task}/{version}", *([task] if is_last else [])}
        for it in self._serving(snapshot):
            if not meant.isdisjoint(it.document.references):
                name = f"{self.kind.name} {it.document.name}"
                yield f"{name} (put one that asks another version first)"

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
        """Return the newest version of each document, ordered by name, without damaged ones."""
        with self._index.reading() as snapshot:
            return list(self._serving(snapshot))

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
        # A damaged version is superseded.
        with suppress(NunatakError):
            if present and (newest := present[-1].parse(self.kind)).document == document:
                return newest
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

    def _serving(self, snapshot: Snapshot) -> Iterator[Published[Document]]:
        newest = {it.name: it for it in snapshot.documents(self.kind.row)}
        for record in newest.values():
            # One damaged row hides no other, as with tasks; `verify` reports it.
            with suppress(NunatakError):
                yield record.parse(self.kind)

    def _records(self, name: str | None = None) -> list[DocumentRecord]:
        if name is not None:
            check_document_name(self.kind.name, name)
        with self._index.reading() as snapshot:
            return snapshot.documents(self.kind.row, name)


class PolicyStore(DocumentStore[Policy]):
    """The policies of one registry."""

    kind = POLICIES

    def undecided(self, task: str) -> list[str]:
        """Say what the policies that ask a task cannot decide by the versions that run now."""
        problems = dict[str, str]()
        with self._index.reading() as snapshot:
            running = None, *snapshot.candidates(task)
            asking = (it.document for it in self._serving(snapshot) if task in it.document.tasks)
            for policy, candidate in product(asking, running):
                try:
                    check_policy(policy, partial(_running, snapshot, candidate))
                except NunatakError as error:
                    by = f"{candidate.role} version {candidate.version}: " if candidate else ""
                    problems.setdefault(str(error), by)
        told = "What it cannot decide, its `on_failure` decides"
        return [f"{by}{problem}. {told}" for problem, by in problems.items()]

    def _check(self, document: Policy, snapshot: Snapshot) -> None:
        check_policy(document, partial(_running, snapshot, None))


def _running(snapshot: Snapshot, candidate: Candidate | None, reference: str) -> TaskManifest:
    """Return the version that a reference means, or the candidate that runs next to it."""
    wanted = TaskReference.parse(reference)
    if candidate and wanted.version is None:
        alias = TaskReference(task=wanted.task, alias=wanted.alias or DEFAULT_ALIAS)
        if alias == TaskReference(task=candidate.task, alias=candidate.alias):
            wanted = TaskReference(task=candidate.task, version=candidate.version)
    return snapshot.find(wanted).parse()


def check_policy(policy: Policy, resolve: Callable[[str], TaskManifest]) -> None:
    """Raise `invalid_policy` unless the present task versions can decide every condition."""
    manifests, problems = dict[str, TaskManifest](), list[str]()
    for text in policy.references:
        try:
            manifests[text] = resolve(text)
        except NunatakError as error:
            problems.append(str(error))
    for rule in policy.rules:
        known = [it for it in rule.conditions if it.task in manifests]
        for condition in known:
            manifest = manifests[condition.task]
            problem = find_misfit(condition, manifest.head, manifest.reads)
            if problem is not None:
                problems.append(f"rule {rule.name!r}, task {condition.task!r}: {problem}")
        is_known = len(known) == len(rule.conditions)
        if rule.action is VerdictAction.MASK and is_known and not _can_mask(rule, manifests):
            problems.append(
                f"rule {rule.name!r} masks, so it needs tasks of token classification: "
                "every task with combine any, at least one (or a pattern) with combine all"
            )
    problems += _unreadable(policy)
    if problems:
        raise POLICIES.invalid(f"policy {policy.name!r}: {'; '.join(problems)}")


def _unreadable(policy: Policy) -> Iterator[str]:
    for rule in policy.rules:
        for it in rule.patterns:
            try:
                compiled(it.pattern)
            except ValueError as error:
                yield f"rule {rule.name!r}: {error}"


def _can_mask(rule: Rule, manifests: Mapping[str, TaskManifest]) -> bool:
    heads = (manifests[it.task].head for it in rule.conditions)
    kinds = [it.kind is HeadKind.TOKEN_CLASSIFICATION for it in heads]
    return all(kinds) if rule.combine is Combine.ANY else any((*kinds, *rule.patterns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The newest versions of all question cards."""

    by_digest: Mapping[str, tuple[PublishedCard, ...]]
    """By the digests of their questions. Only damage or an older release leaves a second card."""
    damaged: tuple[str, ...] = ()
    """The names of the cards that cannot be read."""

    @classmethod
    def of(cls, snapshot: Snapshot, *, besides: str | None = None) -> Self:
        """Return all cards but one."""
        newest = {it.name: it for it in snapshot.documents(QUESTIONS.row) if it.name != besides}
        found, damaged = dict[str, tuple[PublishedCard, ...]](), list[str]()
        for name, record in newest.items():
            try:
                card = record.parse(QUESTIONS)
            except NunatakError:
                damaged.append(name)
                continue
            digest = card.document.question.digest
            found[digest] = (*found.get(digest, ()), card)
        return cls(by_digest=found, damaged=tuple(damaged))

    def find(self, digest: str) -> PublishedCard | None:
        """Return the card of a question, or None if the question certainly has no card.

        Raises:
            NunatakError: `invalid_question`, two cards have the question, or the question has no
                readable card, and a card is damaged, which could be its card.
        """
        match self.by_digest.get(digest, ()):
            case (card,):
                return card
            case () if not self.damaged:
                return None
            case ():
                raise QUESTIONS.invalid(
                    "a question card of the registry is damaged, and may be the card of this "
                    "question; `nunatak task verify` names the card"
                )
            case _:
                raise QUESTIONS.invalid(
                    "several cards of the registry have this question; `nunatak task verify` names "
                    "the cards"
                )

    @property
    def single(self) -> tuple[PublishedCard, ...]:
        """The cards that answer their questions."""
        return tuple(cards[0] for cards in self.by_digest.values() if len(cards) == 1)

    @property
    def doubles(self) -> Iterator[tuple[str, str]]:
        """The reference of each card whose question has another card, and the problem."""
        for cards in self.by_digest.values():
            for other in cards[1:]:
                problem = f"has the question of card {cards[0].document.name!r}; put another one"
                yield other.reference, problem


class QuestionStore(DocumentStore[QuestionCard]):
    """The question cards of one registry. One question has at most one card."""

    kind = QUESTIONS

    def cards(self) -> Cards:
        """Return the newest version of each card."""
        with self._index.reading() as snapshot:
            return Cards.of(snapshot)

    def _check(self, document: QuestionCard, snapshot: Snapshot) -> None:
        subject = f"question card {document.name!r}"
        try:
            manifest = snapshot.find(TaskReference.parse(document.task)).parse()
            other = _other(document, snapshot)
        except NunatakError as error:
            raise QUESTIONS.invalid(f"{subject}: {error}") from error
        problem = find_card_misfit(document, manifest.head, reads=manifest.reads)
        if problem is not None:
            raise QUESTIONS.invalid(f"{subject}: task {document.task!r}: {problem}")
        if other is not None:
            raise QUESTIONS.invalid(
                f"{subject}: the card {other!r} has the same question; publish the next version of "
                "that card"
            )

    def _check_copy(self, document: QuestionCard, snapshot: Snapshot) -> None:
        try:
            snapshot.find(TaskReference.parse(document.task))
            other = _other(document, snapshot)
        except NunatakError as error:
            raise self._conflict(document.name, str(error)) from error
        if other is not None:
            raise self._conflict(document.name, f"the card {other!r} has its question there")


def _other(document: QuestionCard, snapshot: Snapshot) -> str | None:
    """Return the name of another card of the same question."""
    found = Cards.of(snapshot, besides=document.name).find(document.question.digest)
    return found.document.name if found else None
