"""What `nunatak policy` and `nunatak question` share: documents are read, numbered and printed."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import BaseModel

from nunatak_cli.failures import named_place
from nunatak_cli.output import print_outcome
from nunatak_cli.registry.registries import published_line
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_registry import PublishedCard, PublishedPolicy

DocumentT = TypeVar("DocumentT", bound=BaseModel)
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The document: FILE.json, FILE.yaml or FILE.toml.")
]
VersionOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of the version.")
]


def read_document(
    path: Path, model: type[DocumentT], invalid: Callable[[str, str], NunatakError]
) -> DocumentT:
    """Read a document from a file of JSON, YAML or TOML.

    `invalid` makes the error of a document from the place of the problem and the problem.
    """
    with named_place(invalid):
        return model.model_validate(_content_of(path))


def print_published(
    published: "PublishedPolicy | PublishedCard",
    fields: Mapping[str, object],
    *,
    before: int,
    as_json: bool,
) -> None:
    """Say what was published; `before` is the number of the newest version until then."""
    is_new = published.version > before
    line = published_line(published.reference, is_new=is_new)
    print_outcome({**fields, "changed": is_new}, line, as_json=as_json)


def _content_of(path: Path) -> object:
    if path.suffix.lower() != ".json":
        with needs_extra("training"):
            from nunatak_training.settings import read_mapping
        return read_mapping(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    return json.loads(text, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} stands twice")
    return dict(pairs)
