"""Inputs of tasks, and the requests of callers over HTTP.

Requests are strict, frozen, and without undeclared fields.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)

from nunatak_contract.enums import AggregationStrategy, FunctionToApply, OnLong

TextInput = str | tuple[str, str]
"""A text, or a pair of texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, to be answered by a part of its context."""

    question: str
    context: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query, and the documents to rank for the query."""

    query: str
    documents: Sequence[str]


Input = TextInput | Question | Query

T = TypeVar("T")
# Above every setting. A longer list is refused before its items are checked, because a list of a
# million faults would block the event loop.
MAX_ITEMS: Final = 4096
Some = Annotated[list[T], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
MAX_FIELDS: Final = 64


class Message(BaseModel):
    """Base of every request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: object) -> object:
        match value:
            case dict() if len(cast("dict[str, object]", value)) > MAX_FIELDS:
                raise ValueError(f"an object may have at most {MAX_FIELDS} fields")
            case _:
                return value


# The server searches every part of a context up to this length.
MAX_ANSWER_TOKENS: Final = 100


# Only a description: the prediction service of all protocols refuses other texts with a code.
Text = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085][^\u0000]*$",
            "description": "with at least one character that is not a space",
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
    """A query, and the documents to rank for the query."""

    query: Text
    documents: Some[Text]


KIND_OF_FIELDS = {"question": {"question", "context"}, "query": {"query", "documents"}}


NO_NAMES: AbstractSet[str] = frozenset()
"""The names of the fields of a value that can have none."""


def _input_kind(value: object) -> str | None:
    if isinstance(value, list):
        return "list"
    if isinstance(value, str):
        return "text"
    names = field_names(value)
    if names is NO_NAMES:
        return None
    return next((kind for kind, own in KIND_OF_FIELDS.items() if names & own), "pair")


def field_names(value: object) -> AbstractSet[str]:
    """Return the names of the fields of an object or a message; other values have none."""
    match value:
        case dict():
            return cast("dict[str, object]", value).keys()
        case BaseModel():
            return type(value).model_fields.keys()
        case _:
            return NO_NAMES


# The tags pick one schema of the union, so that errors name this schema alone.
_BY_KIND = Discriminator(
    _input_kind,
    custom_error_type="input_type",
    custom_error_message='expected a text, or an object such as {"text": ..., "text_pair": ...}',
)
_One = (
    Annotated[Text, Tag("text")]
    | Annotated[TextPair, Tag("pair")]
    | Annotated[QuestionInput, Tag("question")]
    | Annotated[QueryInput, Tag("query")]
)
Item = Annotated[_One, _BY_KIND]
Inputs = Annotated[_One | Annotated[Some[Item], Tag("list")], _BY_KIND]


Stride = Annotated[int, Field(ge=0, le=MAX_ITEMS)]


class Parameters(Message):
    """Options of the answer. Each kind of head uses its own options and ignores the others."""

    is_literal: ClassVar[bool] = False
    """Whether special tokens in a text are read as plain text, as policies and questions do."""

    top_k: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description=(
            "number of labels, documents or answers; null = all labels or documents, one answer"
        ),
    )
    function_to_apply: Annotated[FunctionToApply, Field(strict=False)] | None = Field(
        default=None,
        description=(
            "classification: null = by problem type; ranking: null = the task's own function"
        ),
    )
    aggregation_strategy: Annotated[AggregationStrategy, Field(strict=False)] = Field(
        default=AggregationStrategy.NONE, description="token classification"
    )
    ignore_labels: Annotated[list[str], Field(max_length=MAX_ITEMS, fail_fast=True)] = Field(
        default=["O"], description="token classification"
    )
    on_long: Annotated[OnLong, Field(strict=False)] | None = Field(
        default=None,
        description=(
            "sequence classification, ranking: treatment of longer texts; null = the task "
            "version's own"
        ),
    )
    stride: Stride | None = Field(
        default=None,
        description="token classification: tokens that adjacent windows of a long text share",
    )
    doc_stride: Stride | None = Field(
        default=None,
        description="question answering: tokens that adjacent windows of a long context share",
    )
    max_answer_len: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)] = Field(
        default=15, description="question answering: tokens"
    )
    handle_impossible_answer: bool = Field(
        default=False, description='question answering: allow the empty answer ""'
    )
    align_to_words: bool = Field(
        default=False, description="question answering: extend answers to whole words"
    )
    return_documents: bool = Field(default=False, description="ranking: repeat the texts")


Reference = Annotated[str, Field(min_length=1, max_length=200, examples=["tone", "tone@prod"])]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]


class PredictRequest(Message):
    """One or more inputs for one task."""

    inputs: Inputs
    parameters: Parameters | None = None


class PredictManyRequest(PredictRequest):
    """One or more inputs for several tasks."""

    tasks: Annotated[Some[Reference], Field(json_schema_extra={"uniqueItems": True})]


class VerdictTexts(Message):
    """One text, or a list of texts, for a policy."""

    inputs: Text | Some[Text]


class VerdictMessages(Message):
    """The messages of a call to a language model, for a policy."""

    messages: Some[dict[str, JsonValue]] = Field(
        description="in the form of any provider; they are judged as a whole"
    )


VerdictRequest = Annotated[
    Annotated[VerdictTexts, Tag("inputs")] | Annotated[VerdictMessages, Tag("messages")],
    Discriminator(lambda value: "messages" if "messages" in field_names(value) else "inputs"),
]


class PromoteRequest(Message):
    """The new version of an alias, and the version that the alias is expected to name now."""

    version: Version
    expected_version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="0 = the alias must not exist yet"
    )


class RollbackRequest(Message):
    """The version that an alias is expected to name now."""

    expected_version: Version | None = None


class CandidateRequest(Message):
    """The version to run next to an alias, and the version that is expected to run there now."""

    version: Version
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        description="of the requests that name the alias, or the task alone"
    )
    expected_version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="0 = there must be no candidate in this role yet"
    )


class CandidateEndRequest(Message):
    """The version that is expected to run next to an alias now."""

    expected_version: Version | None = None
