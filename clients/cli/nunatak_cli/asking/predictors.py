"""Predictors: a server, or a registry in this process. Both give answers of one form.

Inputs may come from a file or from standard input, row by row.
"""

# ruff: noqa: PLC0415 - a command imports client and server when it runs, not for --help

import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, TypeAdapter, ValidationError

from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_contract.inputs import Input
from nunatak_rows import FileFormat, FileRow, RowFormat, file_of_rows, read_rows, row_input

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInput:
    """An input and the place it was read from, for messages: `texts.csv:17`."""

    where: str
    source: Input


STANDARD_INPUT = "-"


def open_inputs(file: str, wanted: FileFormat | None, spelt: RowFormat) -> Iterator[PlacedInput]:
    """Return the inputs of a file, or of standard input (`-`), one after the other.

    Raises:
        NunatakError: the file or a row cannot be read, or the name of the file tells no format.
        MissingExtraError: the format needs the extra `training`.
    """
    is_piped = file == STANDARD_INPUT
    path = Path(file).expanduser()
    opened = file_of_rows(
        path,
        name="standard input" if is_piped else None,
        kind=wanted or (FileFormat.TXT if is_piped else None),
        delimiter=spelt.delimiter,
        source=sys.stdin.buffer if is_piped else None,
    )
    if opened.kind is FileFormat.PARQUET and is_piped:
        raise NunatakError(
            "unreadable_file",
            where=opened.name,
            problem="a Parquet file is read from its end; name a file FILE.parquet",
        )
    return (_placed(row, spelt) for row in read_rows(opened, columns=spelt.inputs))


def _placed(row: FileRow, spelt: RowFormat) -> PlacedInput:
    if row.problem is not None:
        raise NunatakError("invalid_row", where=row.where, problem=row.problem)
    return PlacedInput(where=row.where, source=row_input(row, spelt))
