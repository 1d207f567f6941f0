"""Inputs of tasks: a text, a pair of texts, a question or a query."""

from collections.abc import Sequence
from dataclasses import dataclass

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
