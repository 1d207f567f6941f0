"""Inputs of requests: their kinds, the heads that can answer them, and their texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nunatak_contract.enums import HeadKind, Reads
from nunatak_model import TextInput
from nunatak_server.errors import WrongInputKindError


class InputKind(StrEnum):
    """The kind of one input."""

    TEXT = "text"
    PAIR = "pair"
    QUESTION = "question"
    QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and the context that contains the answer."""

    question: str
    context: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query, and the documents to rank for it."""

    query: str
    documents: tuple[str, ...]


TaskInput = TextInput | Question | Query


def input_kind(item: TaskInput) -> InputKind:
    """Return the kind of an input."""
    match item:
        case str():
            return InputKind.TEXT
        case tuple():
            return InputKind.PAIR
        case Question():
            return InputKind.QUESTION
        case Query():
            return InputKind.QUERY


def input_kinds_of(head: HeadKind, reads: Reads | None) -> tuple[InputKind, ...]:
    """Return the kinds of input that a task answers; `reads` is that of its manifest."""
    match head:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            match reads:
                case Reads.SINGLE:
                    return (InputKind.TEXT,)
                case Reads.PAIR:
                    return (InputKind.PAIR,)
                case None:
                    return InputKind.TEXT, InputKind.PAIR
        case HeadKind.TOKEN_CLASSIFICATION:
            return (InputKind.TEXT,)
        case HeadKind.QUESTION_ANSWERING:
            return (InputKind.QUESTION,)
        case HeadKind.RANKING:
            return (InputKind.QUERY,)


def find_misfit(
    inputs: Sequence[TaskInput], head: HeadKind, reads: Reads | None
) -> WrongInputKindError | None:
    """Return why a task cannot answer the inputs, or None if it can."""
    wanted = input_kinds_of(head, reads)
    for position, item in enumerate(inputs):
        kind = input_kind(item)
        if kind not in wanted:
            return WrongInputKindError(position, kind, head=head, wanted=wanted)
    return None


def strings_in(item: TaskInput) -> tuple[str, ...]:
    """Return every string of an input."""
    match item:
        case str():
            return (item,)
        case tuple():
            return item
        case Question():
            return item.question, item.context
        case Query():
            return item.query, *item.documents


def texts_to_read(item: TaskInput) -> tuple[TextInput, ...]:
    """Return the texts or pairs to encode for an input: one, or one for each document."""
    match item:
        case Question():
            return ((item.question, item.context),)
        case Query():
            return tuple((item.query, document) for document in item.documents)
        case _:
            return (item,)
