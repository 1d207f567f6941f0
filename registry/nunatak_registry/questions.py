"""Question cards of a registry."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from nunatak_contract.errors import NunatakError
from nunatak_contract.names import TaskReference
from nunatak_contract.questions import QuestionCard, find_card_misfit
from nunatak_registry.documents import DocumentStore
from nunatak_registry.index.records import QUESTIONS, PublishedCard
from nunatak_registry.index.snapshot import Snapshot


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
    return found and found.document.name
