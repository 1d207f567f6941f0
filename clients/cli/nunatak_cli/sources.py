"""What is asked about: from the options of a command to one input and its parameters."""

from collections.abc import Sequence

from nunatak_cli.errors import InvalidOptionError
from nunatak_client import AggregationStrategy, Input, OnLong, Parameters, Query, Question


def source_of(
    text: str, *, pair: str | None, question: str | None, documents: Sequence[str]
) -> Input:
    """Return the one input that the options describe.

    Raises:
        InvalidOptionError: they describe several kinds of input.
    """
    match pair, question, documents:
        case None, None, ():
            return text
        case str(), None, ():
            return text, pair
        case None, str(), ():
            return Question(question=question, context=text)
        case None, None, _:
            return Query(query=text, documents=documents)
        case _:
            raise InvalidOptionError(
                "expected at most one of --pair, --question and --document; "
                "ask about each in a command of its own"
            )


def parameters_of(
    source: Input, *, aggregation: str | None, on_long: str | None = None
) -> Parameters:
    """Return how texts are read and answers shown: documents by their texts, not their numbers."""
    return Parameters(
        on_long=None if on_long is None else OnLong(on_long),
        aggregation_strategy=None if aggregation is None else AggregationStrategy(aggregation),
        return_documents=True if isinstance(source, Query) else None,
    )
