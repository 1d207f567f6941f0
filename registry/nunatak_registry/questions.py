"""Question cards of a registry."""

from collections.abc import Mapping

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import QuestionCard, find_card_misfit
from nunatak_registry.documents import DocumentStore, heads_in
from nunatak_registry.index.records import QUESTIONS, PublishedCard
from nunatak_registry.index.snapshot import Snapshot


class QuestionStore(DocumentStore[QuestionCard]):
    """The question cards of one registry. One question has at most one card."""

    kind = QUESTIONS

    def by_digest(self) -> Mapping[str, PublishedCard]:
        """Return the newest version of each readable card by the digest of its question."""
        with self._index.reading() as snapshot:
            return _by_digest(snapshot)

    def _check(self, document: QuestionCard, snapshot: Snapshot) -> None:
        subject = f"question card {document.name!r}"
        try:
            head = heads_in(snapshot)(document.task)
        except NunatakError as error:
            raise QUESTIONS.invalid(f"{subject}: {error}") from error
        problem = find_card_misfit(document, head)
        if problem is not None:
            raise QUESTIONS.invalid(f"{subject}: task {document.task!r}: {problem}")
        other = _by_digest(snapshot, besides=document.name).get(document.question.digest)
        if other is not None:
            raise QUESTIONS.invalid(
                f"{subject}: the card {other.document.name!r} has the same question; publish the "
                "next version of that card"
            )


def _by_digest(snapshot: Snapshot, *, besides: str | None = None) -> dict[str, PublishedCard]:
    newest = {it.name: it for it in snapshot.documents(QUESTIONS.row) if it.name != besides}
    found = dict[str, PublishedCard]()
    for record in newest.values():
        try:
            published = record.parse(QUESTIONS)
        except NunatakError:
            # No question means a damaged card. `nunatak task verify` names it.
            continue
        # Only a copy from another registry can bring a second card of one question.
        found.setdefault(published.document.question.digest, published)
    return found
