"""Chunks: the rows of a corpus in parts of one size, and the threads that read and score them.

    read and tokenize -> score -> write

Each step works one chunk ahead of the next step and then waits, so the memory holds a few chunks,
however long the corpus is.
"""

import glob
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import JsonValue

from nunatak_cli.asking.writing import AnswerColumns, AnsweredRow
from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Input
from nunatak_rows import FileOfRows, FileRow, RowFormat, file_of_rows, read_rows, row_input
from nunatak_rows.files import unreadable

if TYPE_CHECKING:
    from nunatak_server.predict.scoring import ReadInputs, ScoredInputs, Scorer

CHUNK_ROWS: Final = 1024
"""Rows of one chunk. A kill loses the work of at most three chunks: one that is read, one that is
scored and one that is written."""
GLOB_CHARACTERS: Final = frozenset("*?[")


@dataclass(slots=True, kw_only=True)
class Chunk:
    index: int
    rows: list[FileRow]
    """Empty if an earlier run has written the chunk."""
    first_row: int
    num_rows: int
    begin: float
    end: float
    """Shares of the bytes of the corpus before the begin and before the end of the chunk."""
    is_done: bool = False
    inputs: list[Input] = field(default_factory=list[Input])
    places: list[int] = field(default_factory=list[int])
    """The place in `rows` of each of `inputs`."""
    problems: dict[int, str] = field(default_factory=dict[int, str])
    """The reasons for the rows that make no input, by place in `rows`."""


def corpus_files(source: str, *, delimiter: str | None) -> list[FileOfRows]:
    """Return the files of a corpus: one file, the files of a folder, or the files of a glob.

    Files come once, in the order of their names. Of a folder, names that begin with `.` or `_` are
    left out, like other programs do.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        listed = [it for it in path.iterdir() if it.is_file() and it.name[0] not in "._"]
    elif path.exists() or not GLOB_CHARACTERS.intersection(source):
        listed = [path]
    else:
        matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 - also absolute patterns
        listed = [it for it in map(Path, matches) if not it.is_dir()]
    if not listed or not all(it.is_file() for it in listed):
        raise unreadable(source, "no file there; name a file, a folder or a glob")
    files = [file_of_rows(it, name=str(it), delimiter=delimiter) for it in sorted(set(listed))]
    for file in files:
        if file.kind.family != files[0].kind.family:
            raise unreadable(
                file.name, f"expected the format of {files[0].name}; score each format by itself"
            )
    return files


def read_chunks(
    files: Sequence[FileOfRows],
    spelt: RowFormat,
    *,
    taken: Collection[str],
    done: Collection[int],
    size: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """Yield the chunks of all files. Those in `done` come without rows.

    `taken` are the columns of the answers, which no row may have.
    """
    rows, index, begin = _all_rows(files, spelt), 0, 0.0
    while part := list(islice(rows, size)):
        chunk = Chunk(
            index=index,
            rows=[] if index in done else [it for it, _ in part],
            first_row=index * size,
            num_rows=len(part),
            begin=begin,
            end=part[-1][1],
            is_done=index in done,
        )
        _find_inputs(chunk, spelt, taken)
        yield chunk
        index, begin = index + 1, chunk.end


def _all_rows(files: Sequence[FileOfRows], spelt: RowFormat) -> Iterator[tuple[FileRow, float]]:
    """Yield all rows, each with the share of the bytes of the corpus up to its end."""
    sizes = [it.path.stat().st_size for it in files]
    total, begins = sum(sizes), accumulate(sizes, initial=0)
    for file, begin in zip(files, begins, strict=False):
        for row in read_rows(file, columns=spelt.inputs):
            yield row, (begin + row.end) / total


def _find_inputs(chunk: Chunk, spelt: RowFormat, taken: Collection[str]) -> None:
    for place, row in enumerate(chunk.rows):
        problem = row.problem or _find_collision(row, taken)
        if problem is None:
            try:
                item = row_input(row, spelt)
            except NunatakError as error:
                problem = str(error.fields["problem"])
            else:
                chunk.inputs.append(item)
                chunk.places.append(place)
        if problem is not None:
            chunk.problems[place] = problem


def _find_collision(row: FileRow, taken: Collection[str]) -> str | None:
    found = next((name for name in taken if name in row.values), None)
    return None if found is None else f"the column {found!r} would be overwritten by the answers"


Item = TypeVar("Item")


def ahead(items: Iterable[Item], stop: Callable[[], None] = lambda: None) -> Generator[Item]:
    """Yield items that a thread makes, one item ahead of their use. Exceptions are raised here.

    The end waits for the item that is being made; `stop` is called before, to cut it short.
    """
    source = iter(items)
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        stack.callback(stop)
        upcoming = thread.submit(next, source, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, source, None)
            yield item


OnBatch = Callable[[Chunk, float], None]
"""Gets the scored share of a chunk, from 0 to 1, on the thread that scores, after each batch."""
ScoreChunks = Callable[[Iterable[Chunk], OnBatch], "Generator[tuple[Chunk, ScoredInputs | None]]"]
"""Yields each chunk with its answers; None if an earlier run has written the chunk."""


def score_chunks(
    chunks: Iterable[Chunk], on_batch: OnBatch, *, scorer: "Scorer"
) -> "Generator[tuple[Chunk, ScoredInputs | None]]":
    """Score chunks in this process (see `ScoreChunks`)."""

    def read() -> "Iterator[tuple[Chunk, ReadInputs | None]]":
        for chunk in chunks:
            yield chunk, None if chunk.is_done else scorer.read(chunk.inputs)

    def score() -> "Iterator[tuple[Chunk, ScoredInputs | None]]":
        for chunk, inputs in ahead(read()):
            yield chunk, None if inputs is None else scorer.score(inputs, partial(on_batch, chunk))

    return ahead(score(), scorer.stop)


def answered_rows(
    chunk: Chunk, scored: "ScoredInputs", columns: Sequence[AnswerColumns]
) -> list[AnsweredRow]:
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
        whose = "" if refusal.reference is None else f"{refusal.reference}: "
        problems[place] = (error.code, f"{whose}{error.problem}")
    return [
        {
            "file": chunk.rows[place].file,
            "row": chunk.rows[place].number,
            "code": code,
            "reason": reason,
        }
        for place, (code, reason) in sorted(problems.items())
    ]
