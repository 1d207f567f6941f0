"""The pipeline: chunks are read, scored and written at the same time, each step on its own thread.

    read and tokenize -> score -> write

Each step works one chunk ahead of the next step and then waits, so the memory holds a few chunks,
however long the corpus is.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from pydantic import JsonValue

from nunatak_cli.corpus.chunks import Chunk
from nunatak_cli.corpus.writing import AnswerColumns, AnsweredRow
from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nunatak_server.predict.scoring import ReadInputs, ScoredInputs, Scorer

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items that a thread makes, one item ahead of their use. Exceptions are raised here."""
    source = iter(items)
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, source, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, source, None)
            yield item


def score_chunks(
    chunks: Iterable[Chunk], scorer: "Scorer"
) -> "Iterator[tuple[Chunk, ScoredInputs | None]]":
    """Yield each chunk with its answers; None if an earlier run has written the chunk."""

    def read() -> "Iterator[tuple[Chunk, ReadInputs | None]]":
        for chunk in chunks:
            yield chunk, None if chunk.is_done else scorer.read(chunk.inputs)

    def score() -> "Iterator[tuple[Chunk, ScoredInputs | None]]":
        for chunk, inputs in ahead(read()):
            yield chunk, None if inputs is None else scorer.score(inputs)

    return ahead(score())


def answered_rows(
    chunk: Chunk, scored: "ScoredInputs", columns: "Sequence[AnswerColumns]"
) -> list[AnsweredRow]:
    """Return the rows of a chunk with answers, in order."""
    return [
        AnsweredRow(
            row=chunk.rows[chunk.places[position]],
            answers=[
                value
                for task, answer in zip(columns, scored.answers, strict=True)
                for value in task.values(answer, place)
            ],
        )
        for place, position in enumerate(scored.positions)
    ]


def rejected_rows(chunk: Chunk, scored: "ScoredInputs") -> list[dict[str, JsonValue]]:
    """Return the rows of a chunk without answers, in order, each with its place and the reason."""
    problems = {place: ("invalid_row", text) for place, text in chunk.problems.items()}
    for position, refusal in scored.refusals.items():
        place, error = chunk.places[position], refusal.error
        # The error counts inputs. People look for the row.
        named = NunatakError(error.code, **{**error.fields, "position": chunk.rows[place].number})
        whose = "" if refusal.reference is None else f"{refusal.reference}: "
        problems[place] = (error.code, f"{whose}{named}")
    return [
        {
            "file": chunk.rows[place].file,
            "row": chunk.rows[place].number,
            "code": code,
            "reason": reason,
        }
        for place, (code, reason) in sorted(problems.items())
    ]
