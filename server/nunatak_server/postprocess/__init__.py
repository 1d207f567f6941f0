"""From logits to answers, one module a kind of head, in the shapes of Hugging Face pipelines."""

from nunatak_server.postprocess.answers import Answer, AnswerOptions, best_answers
from nunatak_server.postprocess.classification import (
    LabelScore,
    ScoreOptions,
    default_function,
    label_scores,
)
from nunatak_server.postprocess.entities import (
    AggregationStrategy,
    Entity,
    EntityGroup,
    EntityOptions,
    Join,
    TokenEntity,
    find_entities,
)
from nunatak_server.postprocess.ranking import RankedDocument, RankingOptions, rank_documents
from nunatak_server.postprocess.scores import ScoreFunction
from nunatak_server.postprocess.windows import Window, window_of

__all__ = [
    "AggregationStrategy",
    "Answer",
    "AnswerOptions",
    "Entity",
    "EntityGroup",
    "EntityOptions",
    "Join",
    "LabelScore",
    "RankedDocument",
    "RankingOptions",
    "ScoreFunction",
    "ScoreOptions",
    "TokenEntity",
    "Window",
    "best_answers",
    "default_function",
    "find_entities",
    "label_scores",
    "rank_documents",
    "window_of",
]
