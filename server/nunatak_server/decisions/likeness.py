"""Likeness: the backbone answers questions by its embeddings of the text and of each outcome.

The vector of an outcome is remembered by the text of the outcome, so no order of options, and no
other question, changes which vector belongs to which outcome.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

import torch
from cachetools import LRUCache
from torch import Tensor

from nunatak_contract.errors import NunatakError
from nunatak_contract.questions import TypedQuestion, text_of
from nunatak_model import Backbone
from nunatak_server.decisions.answers import (
    AnswerSource,
    AskedQuestion,
    Decisions,
    QuestionAnswer,
    as_shares,
)
from nunatak_server.predict.service import PredictionService
from nunatak_server.predict.types import EmbeddingRequest, Embeddings, Handling, StageTimes
from nunatak_server.settings import ServerSettings
from nunatak_server.tokenization import check_texts

MAX_VECTOR_BYTES: Final = 64 * 1024**2
"""Most memory of the vectors of outcomes."""
UNREAD: Final = "only characters that the backbone cannot read"


class Likeness:
    """Answers questions by likeness; only the event loop thread may use it."""

    def __init__(self, *, service: PredictionService, settings: ServerSettings) -> None:
        self._service = service
        self._settings = settings
        self._vectors: LRUCache[tuple[str, bytes], Tensor] = LRUCache(
            MAX_VECTOR_BYTES, getsizeof=lambda it: it.nbytes
        )
        """The vectors of texts of outcomes, by backbone and digest of the text."""

    async def answer(
        self, asked: Sequence[AskedQuestion], text: str, *, handling: Handling, backbone: Backbone
    ) -> Decisions:
        """Answer each question by softmax(cosine / temperature) of the text and its outcomes.

        Raises:
            NunatakError: no question can be answered.
        """
        limit = self._settings.max_text_chars
        texts = [_readable_texts(it, max_chars=limit) for it in asked]
        readable = [it for it in texts if not isinstance(it, NunatakError)]
        if not readable:
            return Decisions(answers=tuple(it for it in texts if isinstance(it, NunatakError)))
        known, times = await self._vectors_of(readable, handling, backbone)
        found = await self._embed((text,), handling, backbone)
        if _is_unread(text, found.num_unread[0]):
            raise NunatakError("invalid_text", position=0, reason=UNREAD)
        vector = torch.tensor(found.vectors[0], dtype=torch.float64)
        answers = tuple(
            it if isinstance(it, NunatakError) else self._answer(each, it, known, vector, backbone)
            for each, it in zip(asked, texts, strict=True)
        )
        return Decisions(
            answers=answers,
            num_tokens=found.num_tokens,
            is_cut=found.is_cut,
            timings=StageTimes.slowest((*times, found.timings)),
        )

    async def _vectors_of(
        self, texts: Sequence[Sequence[str]], handling: Handling, backbone: Backbone
    ) -> tuple[Mapping[str, Tensor], list[StageTimes]]:
        """Return the vector of each text that can be read, and the times of the embeddings."""
        # In one order, so that the order of questions and options changes no batch.
        wanted = sorted({it for each in texts for it in each})
        keys = {it: (backbone.digest, sha256(it.encode()).digest()) for it in wanted}
        found = {it: kept for it in wanted if (kept := self._vectors.get(keys[it])) is not None}
        missing, times = [it for it in wanted if it not in found], list[StageTimes]()
        # In parts, so that the texts of other callers get their turns.
        size = self._settings.max_inputs
        for part in (missing[at : at + size] for at in range(0, len(missing), size)):
            embedded = await self._embed(tuple(part), handling, backbone)
            times.append(embedded.timings)
            for it, vector, num in zip(part, embedded.vectors, embedded.num_unread, strict=True):
                if not _is_unread(it, num):
                    found[it] = torch.tensor(vector, dtype=torch.float64)
                    self._vectors[keys[it]] = found[it]
            await asyncio.sleep(0)
        return found, times

    async def _embed(
        self, texts: tuple[str, ...], handling: Handling, backbone: Backbone
    ) -> Embeddings:
        request = EmbeddingRequest(
            inputs=texts,
            handling=handling,
            truncates=True,
            normalises=True,
            backbone=backbone.digest,
            is_literal=True,
        )
        return await self._service.embed(request)

    def _answer(
        self,
        asked: AskedQuestion,
        texts: Sequence[str],
        known: Mapping[str, Tensor],
        vector: Tensor,
        backbone: Backbone,
    ) -> QuestionAnswer | NunatakError:
        for place, text in enumerate(texts):
            if text not in known:
                return _unreadable(asked, place, f"contains {UNREAD}")
        outcomes = torch.stack([known[it] for it in texts])
        # Row by row, because the sums of a matrix product depend on the place of a row.
        likeness = list(map(float, (outcomes * vector).sum(dim=1)))
        temperature, largest = self._settings.decisions_temperature, max(likeness)
        return QuestionAnswer(
            question=asked.question,
            probabilities=as_shares([math.exp((it - largest) / temperature) for it in likeness]),
            by=AnswerSource.EMBEDDINGS,
            about={"backbone": backbone.name},
        )


def _readable_texts(asked: AskedQuestion, *, max_chars: int) -> tuple[str, ...] | NunatakError:
    texts = outcome_texts(asked.question)
    for place, text in enumerate(texts):
        try:
            check_texts((text,), max_chars=max_chars)
        except NunatakError as error:
            return _unreadable(asked, place, error.problem)
    return texts


def _is_unread(text: str, num_unread: int) -> bool:
    """Whether nothing of a text is read: its vector is that of any such text."""
    return num_unread >= sum(not it.isspace() for it in text)


def _unreadable(asked: AskedQuestion, place: int, reason: str) -> NunatakError:
    return NunatakError("question_unreadable", question=asked.title, place=place + 1, reason=reason)


def outcome_texts(question: TypedQuestion) -> tuple[str, ...]:
    asked = text_of(question.instructions or "")
    match question.type:
        case "predicate":
            yes = asked if question.yes is None else text_of(question.yes)
            return (f"Not: {yes}" if question.no is None else text_of(question.no), yes)
        case "choice":
            described = [(str(it.value), it.description) for it in question.options]
        case "score":
            described = [(text_of(it.label), it.description) for it in question.levels]
    return tuple(
        name if about is None else f"{name}: {text_of(about)}" for name, about in described
    )
