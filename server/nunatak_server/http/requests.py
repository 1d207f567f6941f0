"""Strict JSON: what every parser reads in the same way, and nothing else.

The base of the wire format: strict, frozen, and without fields that nobody declared.

What callers ask: inputs of every kind, and parameters for every kind of head.
"""

import json
from collections.abc import Set as AbstractSet
from typing import Annotated, cast

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from nunatak_contract.enums import OnLong
from nunatak_server.errors import InvalidJsonError
from nunatak_server.outputs.answers import AnswerOptions
from nunatak_server.outputs.entities import AggregationStrategy, EntityOptions
from nunatak_server.outputs.outputs import PredictionOptions
from nunatak_server.outputs.scores import RankingOptions, ScoreFunction, ScoreOptions


def parse_json(body: bytes) -> object:
    """Parse strict JSON: UTF-8, no NaN, no lone surrogates, no field twice, bounded depth.

    A field that is named twice means one thing to a proxy that checks bodies and another to us.

    Raises:
        InvalidJsonError: it is something else.
    """
    try:
        parsed = orjson.loads(body)
        # The fast parser takes the last of equal names. Every field has a colon, so where there
        # are no more colons than fields, none was dropped; else another parser looks for them.
        # Numbers stay text there, which may have more digits than Python converts.
        if body.count(b":") > _num_fields(parsed):
            json.loads(body, object_pairs_hook=_refuse_doubles, parse_int=str, parse_float=str)
    except (orjson.JSONDecodeError, RecursionError):
        # The decoder's own message is left out, because it quotes the body.
        raise InvalidJsonError from None
    return parsed


def _num_fields(parsed: object) -> int:
    match parsed:
        case dict():
            fields = cast("dict[str, object]", parsed)
            return len(fields) + sum(map(_num_fields, filter(_is_container, fields.values())))
        case list():
            return sum(map(_num_fields, filter(_is_container, cast("list[object]", parsed))))
        case _:
            return 0


def _is_container(value: object) -> bool:
    return type(value) in {dict, list}


def _refuse_doubles(fields: list[tuple[str, object]]) -> None:
    if len({name for name, _ in fields}) < len(fields):
        raise InvalidJsonError


# Above every setting; what is longer is refused before its items are looked at, because listing
# the faults of a million items would hold up the event loop.
MAX_ITEMS = 4096
MAX_FIELDS = 64


class Message(BaseModel):
    """Base of everything that is sent or received."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: object) -> object:
        match value:
            case dict() if len(cast("dict[str, object]", value)) > MAX_FIELDS:
                raise ValueError(f"an object may have at most {MAX_FIELDS} fields")
            case _:
                return value


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
