"""`nunatak question`: publish, list, show and check cards, which bind questions to tasks."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue, RootModel
from rich.table import Table

from nunatak_cli.failures import named_place
from nunatak_cli.options import JsonOption, RegistryOption, group
from nunatak_cli.output import console, print_json, print_outcome
from nunatak_cli.registry.documents import (
    FileArgument,
    VersionOption,
    print_published,
    read_document,
)
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from nunatak_contract.questions import QuestionCard
    from nunatak_registry import PublishedCard


def put(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Publish a card under its next number. Servers use the newest version at once."""
    card = _read(file)
    with existing_registry(registry) as opened:
        before = opened.questions.numbers().get(card.name, 0)
        published = opened.questions.put(card)
    print_published(published, _card_json(published), before=before, as_json=as_json)


def list_cards(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the cards with their newest versions."""
    from nunatak_contract.questions import text_of

    with existing_registry(registry) as opened:
        cards = opened.questions.newest()
    table = Table("card", "version", "type", "task", "question", box=None)
    for it in cards:
        card = it.document
        asked = text_of(card.question.instructions or card.question.yes or "")
        table.add_row(card.name, str(it.version), card.question.type, card.task, asked)
    print_outcome(
        {"questions": [_card_json(it) for it in cards]},
        table,
        as_json=as_json,
        empty="no question cards yet; `nunatak question put FILE` publishes one",
    )


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the card.")],
    *,
    version: VersionOption = None,
    registry: RegistryOption = None,
) -> None:
    """Print a card as JSON, the newest version or an older one. `question put` reads it again."""
    with existing_registry(registry) as opened:
        found = opened.questions.get(name, version)
    print_json(found.document.model_dump(mode="json"))


def check(file: FileArgument, *, registry: RegistryOption = None) -> None:
    """Check a card against the tasks of the registry, without publishing it."""
    card = _read(file)
    with existing_registry(registry) as opened:
        opened.questions.check(card)
    console().print(f"{card.name}: task {card.task} can answer the question")


def read_question(path: Path) -> "QuestionCard":
    """Return the card of a file, or the card of a file with a question alone."""
    from nunatak_contract.questions import card_of

    def invalid(place: str, problem: str) -> NunatakError:
        return NunatakError("invalid_question_file", path=path, place=place, problem=problem)

    fields = read_document(path, RootModel[dict[str, JsonValue]], invalid).root
    with named_place(invalid):
        return card_of(fields)


def _read(path: Path) -> "QuestionCard":
    from nunatak_contract.questions import QuestionCard

    def invalid(place: str, problem: str) -> NunatakError:
        return NunatakError("invalid_question_file", path=path, place=place, problem=problem)

    return read_document(path, QuestionCard, invalid)


def _card_json(published: "PublishedCard") -> dict[str, object]:
    from nunatak_contract.wire import QuestionDetail

    return QuestionDetail.model_validate(published).model_dump(mode="json")


question_app = group(
    "question",
    "Publish and check question cards, which let tasks answer typed questions.",
    {
        "put": (put, "nunatak question put urgent.json"),
        "list": (list_cards, "nunatak question list"),
        "show": (show, "nunatak question show urgent > urgent.json"),
        "check": (check, "nunatak question check urgent.json"),
    },
)
