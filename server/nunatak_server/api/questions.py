"""What callers ask: inputs of every kind, and parameters for every kind of head."""

from collections.abc import Set as AbstractSet
from typing import Annotated, cast

from pydantic import BaseModel, Discriminator, Field, Tag, WithJsonSchema

from nunatak_registry import OnLong
from nunatak_server.api.messages import MAX_ITEMS, Message
from nunatak_server.postprocess import (
    AggregationStrategy,
    AnswerOptions,
    EntityOptions,
    RankingOptions,
    ScoreFunction,
    ScoreOptions,
)
from nunatak_server.postprocess.outputs import PredictionOptions

# Every part of a context up to this length is looked at.
MAX_ANSWER_TOKENS = 100


# Only described here: the service, which all protocols share, refuses other texts by a code.
Text = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085][^\u0000]*$",
            "description": "with something to read in it",
        }
    ),
]


class TextPair(Message):
    """A text, or two texts that are read together."""

    text: Text
    text_pair: Text | None = None


class QuestionInput(Message):
    """A question, to be answered by a part of its context."""

    question: Text
    context: Text


class QueryInput(Message):
    """A query, and the documents to order by how well they answer it."""

    query: Text
    documents: Annotated[list[Text], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]


KIND_OF_FIELDS = {"question": {"question", "context"}, "query": {"query", "documents"}}


def _input_kind(value: object) -> str:
    if isinstance(value, list):
        return "list"
    if isinstance(value, str):
        return "text"
    names = _field_names(value)
    return next((kind for kind, own in KIND_OF_FIELDS.items() if names & own), "pair")


def _field_names(value: object) -> AbstractSet[str]:
    match value:
        case dict():
            return cast("dict[str, object]", value).keys()
        case BaseModel():
            return type(value).model_fields.keys()
        case _:
            return frozenset()


# Tags choose the one schema that is meant, so that errors speak of that one alone.
Item = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[TextPair, Tag("pair")]
    | Annotated[QuestionInput, Tag("question")]
    | Annotated[QueryInput, Tag("query")],
    Discriminator(_input_kind),
]
Inputs = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[TextPair, Tag("pair")]
    | Annotated[QuestionInput, Tag("question")]
    | Annotated[QueryInput, Tag("query")]
    | Annotated[list[Item], Tag("list"), Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)],
    Discriminator(_input_kind),
]


Stride = Annotated[int, Field(ge=0, le=MAX_ITEMS)]


class Parameters(Message):
    """What to show; each kind of head heeds its own parameters and leaves those of others."""

    top_k: Annotated[int, Field(ge=1)] | None = Field(
        None, description="labels, documents or answers; null = all, but of answers one"
    )
    function_to_apply: Annotated[ScoreFunction, Field(strict=False)] | None = Field(
        None,
        description="classification: null = by problem type; ranking: null = as the task says",
    )
    aggregation_strategy: Annotated[AggregationStrategy, Field(strict=False)] = Field(
        AggregationStrategy.NONE, description="token classification"
    )
    ignore_labels: Annotated[list[str], Field(max_length=MAX_ITEMS, fail_fast=True)] = Field(
        ["O"], description="token classification"
    )
    on_long: Annotated[OnLong, Field(strict=False)] | None = Field(
        None,
        description="sequence classification, ranking: what becomes of longer texts; "
        "null = as the task version says",
    )
    stride: Stride | None = Field(
        None, description="token classification: tokens that windows of a long text share"
    )
    doc_stride: Stride | None = Field(
        None, description="question answering: tokens that windows of a long context share"
    )
    max_answer_len: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)] = Field(
        15, description="question answering: tokens"
    )
    handle_impossible_answer: bool = Field(
        default=False, description='question answering: "" is one of the answers'
    )
    align_to_words: bool = Field(
        default=False, description="question answering: answers are extended to whole words"
    )
    return_documents: bool = Field(default=False, description="ranking: repeat the texts")

    def options(self) -> PredictionOptions:
        """Return the same in the terms of the service."""
        return PredictionOptions(
            scores=ScoreOptions(function=self.function_to_apply, top_k=self.top_k),
            entities=EntityOptions(
                aggregation=self.aggregation_strategy,
                ignored_labels=frozenset(self.ignore_labels),
                stride=self.stride,
            ),
            answers=AnswerOptions(
                top_k=self.top_k or 1,
                max_answer_tokens=self.max_answer_len,
                may_have_no_answer=self.handle_impossible_answer,
                align_to_words=self.align_to_words,
                stride=self.doc_stride,
            ),
            ranking=RankingOptions(
                function=self.function_to_apply,
                top_k=self.top_k,
                return_documents=self.return_documents,
            ),
            on_long=self.on_long,
        )
