"""Predictors: a server, or a registry in this process. Both give answers of one form.

Inputs may come from a file or from standard input, row by row.
"""

# ruff: noqa: PLC0415 - a command imports client and server when it runs, not for --help

import csv
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from nunatak_cli.registries import existing_registry
from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_contract.inputs import Input, Query, Question, delimiter_of

if TYPE_CHECKING:
    from nunatak_client import (
        Client,
        Entity,
        HeadOutputs,
        Parameters,
        PredictedValue,
        TaskResult,
    )
    from nunatak_contract.manifest import TaskManifest
    from nunatak_registry import Registry
    from nunatak_server.local import LocalPredictor
    from nunatak_server.predict.types import TaskFailure, TaskPrediction

Item = Mapping[str, JsonValue]
"""One label, entity, answer or document with its score, in the shape of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """The answer of one task, or its error."""

    reference: str
    version: int | None
    items: tuple[Item, ...]
    """The best item first; entities are in the order of the text."""
    problem_type: ProblemType | None = None
    predicted: "PredictedValue | None" = None
    """The label, all labels that apply, or the value; None for other heads."""
    num_tokens: int | None = None
    """Tokens of the text that the task read; None if the server does not report the number."""
    is_truncated: bool = False
    """Whether the task did not read a part of the text."""
    error_code: str | None = None
    error_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPredictor:
    """Predicts with the tasks of a server."""

    client: "Client"

    def manifest(self, reference: str) -> "TaskManifest":
        """Return the manifest of the version that a reference means now.

        Raises:
            InvalidResponseError: this release cannot read the manifest.
        """
        from nunatak_client import InvalidResponseError
        from nunatak_contract.manifest import TaskManifest

        described = self.client.task(reference).manifest
        try:
            return TaskManifest.model_validate_json(json.dumps(described))
        except ValidationError as error:
            raise InvalidResponseError(
                f"the manifest of {reference} is of another release than this command; use the "
                "release of the server"
            ) from error

    def ask_one(
        self, source: Input, tasks: Sequence[str], parameters: "Parameters"
    ) -> list[ShownAnswer]:
        """Return the answer of each task to one input."""
        fan_out = self.client.predict_many(source, tasks, parameters=parameters)
        return [server_answer(result) for result in fan_out.results]

    def ask(
        self, inputs: Iterable[Input], tasks: Sequence[str], parameters: "Parameters"
    ) -> Iterator[list[ShownAnswer]]:
        """Yield the answers of all tasks to each input, in order; all before a refused input."""
        for part, fan_out in self.client.predict_all(inputs, tasks, parameters=parameters):
            for place in range(len(part)):
                yield [server_answer(result, place) for result in fan_out.results]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryPredictor:
    """Predicts with the tasks of a registry, by the server's engine in this process."""

    registry: "Registry"
    predictor: "LocalPredictor"

    def manifest(self, reference: str) -> "TaskManifest":
        """Return the manifest of the version that a reference means now."""
        return self.registry.resolve(reference)

    def ask_one(
        self, source: Input, tasks: Sequence[str], parameters: "Parameters"
    ) -> list[ShownAnswer]:
        """Return the answer of each task to one input."""
        return next(self.ask([source], tasks, parameters))

    def ask(
        self, inputs: Iterable[Input], tasks: Sequence[str], parameters: "Parameters"
    ) -> Iterator[list[ShownAnswer]]:
        """Yield the answers of all tasks to each input, in order; all before a refused input."""
        from nunatak_contract import requests
        from nunatak_server.http.requests import options_of

        options = options_of(requests.Parameters.model_validate(parameters.wire()))
        for part, found in self.predictor.predict_all(inputs, tasks, options=options):
            for place in range(len(part)):
                yield [_local_answer(result, place) for result in found.results]


Predictor = ServerPredictor | RegistryPredictor


@contextmanager
def open_predictor(
    server: str | None, *, registry: str | None, backbone: str | None
) -> Generator[Predictor]:
    """Yield a predictor for the server, or for the registry if no server is named."""
    if server is not None:
        from nunatak_client import Client

        with Client(server) as client:
            yield ServerPredictor(client=client)
        return
    with needs_extra("server"):
        from nunatak_model import DEFAULT_BACKBONE, load_backbone
        from nunatak_server.local import LocalPredictor
    with existing_registry(registry) as opened:
        loaded = load_backbone(backbone or DEFAULT_BACKBONE)
        with LocalPredictor(opened, loaded) as predictor:
            yield RegistryPredictor(registry=opened, predictor=predictor)


def server_answer(result: "TaskResult", place: int = 0) -> ShownAnswer:
    """Return the answer of a server to one of the inputs."""
    from nunatak_client import Classification

    problem = result.error
    if problem is not None:
        return ShownAnswer(
            reference=result.reference,
            version=None,
            items=(),
            error_code=problem.code,
            error_message=problem.detail or problem.title,
        )
    said = result.require()
    classified = said if isinstance(said, Classification) else None
    return ShownAnswer(
        reference=result.reference,
        version=result.version,
        items=_items(said, place),
        problem_type=None if classified is None else classified.problem_type,
        predicted=classified.predicted[place] if classified and classified.predicted else None,
        num_tokens=result.tokens[place] if result.tokens else None,
        is_truncated=bool(result.truncated) and result.truncated[place],
    )


def _items(said: "HeadOutputs", place: int) -> tuple[Item, ...]:
    """Return the outputs for one of the inputs, in the shape of the server."""
    from nunatak_client import TokenClassification

    if isinstance(said, TokenClassification):
        return tuple(_entity(entity) for entity in said.outputs[place])
    return tuple(item.model_dump(exclude_none=True) for item in said.outputs[place])


def _entity(entity: "Entity") -> Item:
    is_group = entity.index is None
    place = entity.model_dump(exclude={"label"}, exclude_none=True)
    return {"entity_group" if is_group else "entity": entity.label, **place}


def _local_answer(result: "TaskPrediction | TaskFailure", place: int) -> ShownAnswer:
    from nunatak_server.predict.types import TaskFailure

    if isinstance(result, TaskFailure):
        return ShownAnswer(
            reference=result.reference,
            version=None,
            items=(),
            error_code=result.error.code,
            error_message=str(result.error),
        )
    items = TypeAdapter(tuple[dict[str, JsonValue], ...])
    return ShownAnswer(
        reference=result.reference,
        version=result.version,
        items=items.validate_python(result.outputs[place]),
        problem_type=result.problem_type,
        predicted=None if result.predicted is None else result.predicted[place],
        num_tokens=result.extents[place].num_tokens,
        is_truncated=result.extents[place].is_cut,
    )


class InputFormat(StrEnum):
    """Formats of files of inputs, by file suffix."""

    JSONL = "jsonl"
    JSONL_GZ = "jsonl.gz"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"
    TXT = "txt"


BINARY_FORMATS = frozenset({InputFormat.JSONL_GZ, InputFormat.PARQUET})
"""Formats that the reader of training data reads."""


STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInput:
    """An input and the place it was read from, for messages: `texts.csv:17`."""

    where: str
    source: Input


@contextmanager
def open_inputs(file: str, wanted: InputFormat | None) -> Generator[Iterator[PlacedInput]]:
    """Yield the inputs of a file, or of standard input (`-`), one after the other.

    Raises:
        NunatakError: `invalid_input_file`, the file cannot be read, or its name tells no format.
        MissingExtraError: the format needs the extra `training`.
    """
    name = "standard input" if file == STANDARD_INPUT else Path(file).name
    kind = wanted or _format_of(file, name)
    if kind in BINARY_FORMATS:
        yield _placed_binary(file, kind, name)
        return
    if file == STANDARD_INPUT:
        yield _placed(sys.stdin, kind, name)
        return
    try:
        # A byte order mark is no part of the first column.
        opened = Path(file).expanduser().open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise NunatakError(
            "invalid_input_file", where=name, problem=f"cannot be read: {error.strerror}"
        ) from error
    with opened:
        yield _placed(opened, kind, name)


def _format_of(file: str, name: str) -> InputFormat:
    if file == STANDARD_INPUT:
        return InputFormat.TXT
    for kind in InputFormat:
        if file.endswith(f".{kind}"):
            return kind
    raise NunatakError(
        "invalid_input_file",
        where=name,
        problem=f"the suffix tells no format; name one of {', '.join(InputFormat)} with --format",
    )


def _placed_binary(file: str, kind: InputFormat, name: str) -> Iterator[PlacedInput]:
    if not file.endswith(f".{kind}"):
        raise NunatakError(
            "invalid_input_file",
            where=name,
            problem=f"the format {kind} needs a file whose name ends in .{kind}",
        )
    with needs_extra("training"):
        from nunatak_training.data.files import read_file
    rows = read_file(Path(file).expanduser())
    return (PlacedInput(where=it.where, source=_row_input(it.values, it.where)) for it in rows)


def _placed(lines: TextIO, kind: InputFormat, name: str) -> Iterator[PlacedInput]:
    number = 0
    try:
        for number, row in _rows(lines, kind, name):
            where = f"{name}:{number}"
            yield PlacedInput(where=where, source=_row_input(row, where))
    except UnicodeDecodeError as error:
        raise NunatakError(
            "invalid_input_file",
            where=f"{name}:{number + 1}",
            problem=f"not UTF-8 ({error.reason}); convert the file to UTF-8",
        ) from error
    except csv.Error as error:
        raise NunatakError(
            "invalid_input_file", where=f"{name}:{number + 1}", problem=f"broken row: {error}"
        ) from error


def _rows(
    lines: TextIO, kind: InputFormat, name: str
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield the rows with their lines, from 1; blank lines are no rows."""
    if kind in {InputFormat.CSV, InputFormat.TSV}:
        yield from _columns(lines, "," if kind is InputFormat.CSV else "\t", name)
        return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            is_json = kind is InputFormat.JSONL
            text = line.rstrip("\r\n")
            yield number, _json_row(text, f"{name}:{number}") if is_json else {"text": text}


def _columns(lines: TextIO, usual: str, name: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    header = next(iter(lines), "")
    delimiter = delimiter_of(header, usual)
    reader = csv.DictReader(chain([header], lines), delimiter=delimiter, strict=True)
    for row in reader:
        # The reader puts surplus fields under the name None, and gives None for a missing field.
        if None in row or None in row.values():
            expected = len(reader.fieldnames or ())
            raise NunatakError(
                "invalid_input_file",
                where=f"{name}:{reader.line_num}",
                problem=f"expected {expected} fields as in the header",
            )
        yield reader.line_num, cast("Mapping[str, object]", row)


def _json_row(line: str, where: str) -> Mapping[str, object]:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NunatakError(
            "invalid_input_file", where=where, problem=f"not a JSON object: {error}"
        ) from error
    if not isinstance(row, dict):
        raise NunatakError(
            "invalid_input_file",
            where=where,
            problem=f"expected a JSON object, got {type(row).__name__}",
        )
    return cast("Mapping[str, object]", row)


def _row_input(row: Mapping[str, object], where: str) -> Input:
    """Return the input that the columns of a row make; other columns are ignored."""
    match row:
        case {"query": query, "documents": documents}:
            texts = _texts(documents, "documents", where)
            return Query(query=_text(query, "query", where), documents=texts)
        case {"query": query, "document": document}:
            texts = (_text(document, "document", where),)
            return Query(query=_text(query, "query", where), documents=texts)
        case {"question": question, "context": context}:
            return Question(
                question=_text(question, "question", where),
                context=_text(context, "context", where),
            )
        case {"tokens": tokens}:
            return " ".join(_texts(tokens, "tokens", where))
        case {"text": text, "text_pair": str() as pair}:
            return _text(text, "text", where), _text(pair, "text_pair", where)
        case {"text": text}:
            return _text(text, "text", where)
        case _:
            raise NunatakError(
                "invalid_input_file",
                where=where,
                problem="expected the columns text (and text_pair), question and context, query "
                f"and documents, or tokens; got {', '.join(map(repr, row)) or 'none'}",
            )


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "an empty text" if isinstance(value, str) else type(value).__name__
        raise NunatakError(
            "invalid_input_file", where=where, problem=f"{column!r} must be a text, got {found}"
        )
    return value


def _texts(values: object, column: str, where: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not values:
        raise NunatakError(
            "invalid_input_file", where=where, problem=f"{column!r} must be a list of texts"
        )
    return tuple(_text(value, column, where) for value in cast("list[object]", values))
