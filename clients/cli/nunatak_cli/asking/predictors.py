"""Predictors: a server, or a registry in this process. Both give answers of one form.

Inputs may come from a file or from standard input, row by row.
"""

# ruff: noqa: PLC0415 - a command imports client and server when it runs, not for --help

import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pydantic import JsonValue, ValidationError

from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.errors import NunatakError, invalid_option, needs_extra
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.requests import Input
from nunatak_rows import FileFormat, FileRow, RowFormat, file_of_rows, read_rows, row_input
from nunatak_rows.files import unreadable
from nunatak_rows.inputs import bad_row

if TYPE_CHECKING:
    from typing import Unpack

    from nunatak_client import Client, Entity, PredictedValue, TaskResult
    from nunatak_client.calls import ShownOptions
    from nunatak_registry import Registry
    from nunatak_server.local import LocalPredictor

Item = Mapping[str, JsonValue]
"""One label, entity, answer or document with its score, in the shape of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    answers: "Client | LocalPredictor"
    manifest: Callable[[str], TaskManifest]
    """Returns the manifest of the version that a reference means now."""

    def ask(
        self, inputs: Iterable[Input], tasks: Sequence[str], **shown: "Unpack[ShownOptions]"
    ) -> "Iterator[Sequence[TaskResult]]":
        """Yield the answers of all tasks to each input, in order; all before a refused input."""
        for part, fan_out in self.answers.predict_all(inputs, tasks, **shown):
            for place in range(len(part)):
                yield [result.about(place) for result in fan_out.results]


@contextmanager
def open_predictor(
    server: str | None, tasks: Iterable[str], *, registry: str | None, backbone: str | None
) -> Generator[Predictor]:
    """Without a server, tasks compute on `backbone`, or each on its own."""
    if server is not None:
        if backbone is not None:
            raise invalid_option("--backbone computes in this process; leave it out with --server")
        from nunatak_client import Client

        with Client(server) as client:
            yield Predictor(answers=client, manifest=partial(_served_manifest, client))
        return
    with open_local(tasks, registry=registry, backbone=backbone) as (opened, local):
        yield Predictor(answers=local, manifest=opened.resolve)


@contextmanager
def open_local(
    tasks: Iterable[str], *, registry: str | None, backbone: str | None
) -> "Generator[tuple[Registry, LocalPredictor]]":
    with needs_extra("server"):
        from nunatak_model import load_backbone
        from nunatak_server.local import LocalPredictor
    with existing_registry(registry) as opened:
        names = [backbone] if backbone else backbones_of(opened, tasks)
        with LocalPredictor(opened, *map(load_backbone, names)) as local:
            yield opened, local


def _served_manifest(client: "Client", reference: str) -> TaskManifest:
    from nunatak_client import InvalidResponseError

    described = client.task(reference).manifest
    try:
        return TaskManifest.model_validate_json(json.dumps(described))
    except ValidationError as error:
        raise InvalidResponseError(
            f"the manifest of {reference} is of another release than this command; use the "
            "release of the server"
        ) from error


def backbones_of(registry: "Registry", tasks: Iterable[str]) -> Sequence[str]:
    """Return what loads the backbones of the tasks that are there, each once."""
    from nunatak_model import DEFAULT_BACKBONE, source_of

    found = dict[str, str]()
    for task in tasks:
        # The prediction says what is wrong with a task.
        with suppress(NunatakError):
            own = registry.resolve(task).backbone
            # The default stands for a backbone that is unknown here.
            if (source := source_of(own.name)) != DEFAULT_BACKBONE:
                found[own.digest] = source
    return [*dict.fromkeys(found.values())] or [DEFAULT_BACKBONE]


def predicted_of(answer: "TaskResult") -> "PredictedValue | None":
    """Return the label, all labels that apply, or the value for the one input of an answer.

    None for other heads, and for a server that does not say it.
    """
    from nunatak_client import Classification

    said = answer.require()
    return said.predicted[0] if isinstance(said, Classification) and said.predicted else None


def items_of(answer: "TaskResult") -> tuple[Item, ...]:
    """Return the outputs for the one input of an answer, in the shape of the server."""
    from nunatak_client import Entity

    return tuple(
        _entity(item) if isinstance(item, Entity) else item.model_dump(exclude_none=True)
        for item in answer.require().outputs[0]
    )


def _entity(entity: "Entity") -> Item:
    is_group = entity.index is None
    place = entity.model_dump(exclude={"label"}, exclude_none=True)
    return {"entity_group" if is_group else "entity": entity.label, **place}


PlacedInput = tuple[str, Input]
"""The place that an input was read from, for messages (`texts.csv:17`), and the input."""
STANDARD_INPUT = "-"


def piped_text() -> str:
    """Return standard input as one text, because the parts of a text may hide what they say."""
    try:
        return _piped().read().decode()
    except UnicodeDecodeError as error:
        raise unreadable("standard input", f"it is no UTF-8: {error.reason}") from error


def _piped() -> BinaryIO:
    if sys.stdin is None:  # closed by the caller of the command
        raise unreadable("standard input", "it is closed; pipe texts into the command")
    return sys.stdin.buffer


def open_inputs(file: str, wanted: FileFormat | None, spelt: RowFormat) -> Iterator[PlacedInput]:
    """Return the inputs of a file, or of standard input (`-`), one after the other."""
    is_piped = file == STANDARD_INPUT
    path = Path(file).expanduser()
    opened = file_of_rows(
        path,
        name="standard input" if is_piped else None,
        kind=wanted or (FileFormat.TXT if is_piped else None),
        delimiter=spelt.delimiter,
        source=_piped() if is_piped else None,
    )
    if opened.kind is FileFormat.PARQUET and is_piped:
        raise unreadable(
            opened.name, "a Parquet file is read from its end; name a file FILE.parquet"
        )
    return (_placed(row, spelt) for row in read_rows(opened, columns=spelt.inputs))


def _placed(row: FileRow, spelt: RowFormat) -> PlacedInput:
    if row.problem is not None:
        raise bad_row(row.where, row.problem)
    return row.where, row_input(row, spelt)
