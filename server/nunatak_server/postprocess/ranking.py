"""Ranking: the documents of a query by how well they answer it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from nunatak_server.postprocess.scores import ScoreFunction, apply_function


class RankedDocument(TypedDict):
    """One document by its position in the query; its text only if it was asked for."""

    index: int
    score: float
    document: NotRequired[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOptions:
    """What the caller wants to see; softmax is over the documents of a query."""

    function: ScoreFunction | None = None
    """None: as the task says."""
    top_k: int | None = None
    return_documents: bool = False


def rank_documents(
    logits: Sequence[float],
    documents: Sequence[str],
    *,
    default: ScoreFunction = ScoreFunction.SIGMOID,
    options: RankingOptions,
) -> list[RankedDocument]:
    """Order documents by their logits, best first; equal scores keep the order of the query."""
    scores = apply_function(options.function or default, logits)
    # By logits, because scores far from zero round to the same number.
    order = sorted(range(len(documents)), key=lambda index: -logits[index])
    ranked: list[RankedDocument] = []
    for index in order[: options.top_k]:
        found = RankedDocument(index=index, score=scores[index])
        if options.return_documents:
            found["document"] = documents[index]
        ranked.append(found)
    return ranked
