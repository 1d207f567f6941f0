"""Inputs of requests: their kinds, the heads that can answer them, and their texts."""

from collections.abc import Sequence
from enum import StrEnum

from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import NunatakError
from nunatak_contract.inputs import Input, Query, Question, TextInput


class InputKind(StrEnum):
    """The kind of one input."""

    TEXT = "text"
    PAIR = "pair"
    QUESTION = "question"
    QUERY = "query"


def input_kind(item: Input) -> InputKind:
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
    """Return the kinds of input that a task answers; `reads` comes from the task's manifest."""
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
    inputs: Sequence[Input], head: HeadKind, reads: Reads | None
) -> NunatakError | None:
    """Return why a task cannot answer the inputs, or None if it can."""
    wanted = input_kinds_of(head, reads)
    for position, item in enumerate(inputs):
        kind = input_kind(item)
        if kind not in wanted:
            return NunatakError(
                "wrong_input_kind",
                position=position,
                kind=kind,
                head=head.replace("_", " "),
                wanted=" or a ".join(wanted),
            )
    return None


def strings_in(item: Input) -> tuple[str, ...]:
    match item:
        case str():
            return (item,)
        case tuple():
            return item
        case Question():
            return item.question, item.context
        case Query():
            return item.query, *item.documents


def count_documents(inputs: Sequence[Input]) -> int:
    return sum(len(item.documents) for item in inputs if isinstance(item, Query))


def texts_to_read(item: Input) -> tuple[TextInput, ...]:
    """Return the texts or pairs to encode for an input: one, or one for each document."""
    match item:
        case Question():
            return ((item.question, item.context),)
        case Query():
            return tuple((item.query, document) for document in item.documents)
        case _:
            return (item,)
