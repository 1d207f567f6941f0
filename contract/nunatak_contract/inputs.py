"""Inputs of tasks: a text, a pair of texts, a question or a query; the delimiter of their files."""

import csv
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
DELIMITERS = (",", "\t", ";")
"""Between which the header line of a CSV or TSV file decides."""


def delimiter_of(header: str, usual: str) -> str:
    """Return the delimiter that gives a header line the most fields; between equals, `usual`."""
    num_fields = dict[str, int]()
    for delimiter in (usual, *DELIMITERS):
        try:
            fields = [len(row) for row in csv.reader([header], delimiter=delimiter)]
            num_fields[delimiter] = max(fields, default=0)
        except csv.Error:
            num_fields[delimiter] = 0
    # The first of equals wins, and the usual one is the first.
    return max(num_fields, key=lambda delimiter: num_fields[delimiter])
