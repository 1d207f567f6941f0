"""The versions of documents, for `nunatak policy` and `nunatak question`.

Policies turn answers into decisions. Question cards bind questions to tasks. `nunatak question`
also counts the texts that servers collected.
"""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import typer

from nunatak_cli.options import JsonOption, RegistryOption, RegistryOptions, group
from nunatak_cli.output import (
    content_of,
    plain_table,
    print_json,
    print_outcome,
    print_part,
    wire_json,
)
from nunatak_cli.registry.registries import existing_registry, place_of, published_line
from nunatak_cli.registry.show import moment
from nunatak_contract.errors import needs_extra
from nunatak_contract.names import check_version
from nunatak_contract.plain_text import counted
from nunatak_contract.policies import Policy
from nunatak_contract.questions import QuestionCard, card_of, text_of
from nunatak_contract.wire import PolicyDetail, QuestionDetail

if TYPE_CHECKING:
    from nunatak_registry.documents import DocumentStore
    from nunatak_registry.index.records import Published

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Policy or question card: a JSON, YAML or TOML file.")
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the policy or question card.")
]
VersionArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME[/VERSION]",
        help="Name of the policy or question card, or a version such as guard/2.",
    ),
]
DocumentT = TypeVar("DocumentT", Policy, QuestionCard)


def _read(path: Path) -> object:
    if path.suffix.lower() != ".json":
        with needs_extra("training"):
            from nunatak_training.settings import read_mapping
        return read_mapping(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    try:
        return json.loads(text, object_pairs_hook=_without_doubles)
    except RecursionError as error:
        raise ValueError(f"cannot be parsed: {error}") from error


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} stands twice")
    return dict(pairs)


def _version_named(reference: str) -> tuple[str, int | None]:
    name, slash, version = reference.partition("/")
    return name, check_version(version) if slash else None


@dataclass(frozen=True, kw_only=True)
class Documents(Generic[DocumentT]):
    """The commands that each kind of document has."""

    kind: str
    listing: str
    """The plural of `kind`, and the name of the store of a registry."""
    read: Callable[[Path], DocumentT]
    detail: type[PolicyDetail] | type[QuestionDetail]
    columns: tuple[str, ...]
    cells_of: Callable[[DocumentT], tuple[str, ...]]

    def put(self, file: FileArgument, *, asked: RegistryOptions) -> None:
        """Publish FILE as the next version of its name. Servers use the newest version at once."""
        document = self.read(file)
        with self._store(asked.registry) as store:
            before = store.numbers().get(document.name, 0)
            published = store.put(document)
        self._print_published(published, before=before, as_json=asked.as_json)

    def list(self, *, asked: RegistryOptions) -> None:
        """List the newest versions."""
        with self._store(asked.registry) as store:
            newest = store.newest()
        table = plain_table("name", "version", *self.columns)
        for it in newest:
            table.add_row(it.document.name, str(it.version), *self.cells_of(it.document))
        print_outcome(
            {self.listing: [wire_json(self.detail, it) for it in newest]},
            table,
            as_json=asked.as_json,
            empty=f"no {self.listing} yet in {place_of(asked.registry)}; "
            f"`nunatak {self.kind} put FILE` publishes one",
        )

    def show(self, reference: VersionArgument, *, registry: RegistryOption = None) -> None:
        """Print the newest version as JSON, or an older one. `put` reads it again."""
        with self._store(registry) as store:
            found = store.get(*_version_named(reference))
        print_json(found.document.model_dump(mode="json"))

    def history(self, name: NameArgument, *, asked: RegistryOptions) -> None:
        """List all versions, the newest first."""
        with self._store(asked.registry) as store:
            versions = store.history(name)
        table = plain_table("version", "published", "by", *self.columns)
        for it in versions:
            row = (str(it.version), moment(it.published_at), it.by)
            table.add_row(*row, *self.cells_of(it.document))
        document = {"versions": [wire_json(self.detail, it) for it in versions]}
        print_outcome(document, table, as_json=asked.as_json)

    def rollback(self, reference: VersionArgument, *, asked: RegistryOptions) -> None:
        """Publish an older version again, under the next number. Servers use it at once.

        A name alone means the version before the newest.
        """
        name, version = _version_named(reference)
        with self._store(asked.registry) as store:
            before = store.numbers().get(name, 0)
            published = store.rollback(name, version)
        self._print_published(published, before=before, as_json=asked.as_json)

    @contextmanager
    def _store(self, registry: str | None) -> "Generator[DocumentStore[DocumentT]]":
        with existing_registry(registry) as opened:
            yield getattr(opened, self.listing)

    def _print_published(
        self, published: "Published[DocumentT]", *, before: int, as_json: bool
    ) -> None:
        is_new = published.version > before
        line = published_line(published.reference, is_new=is_new)
        print_outcome(
            {**wire_json(self.detail, published), "changed": is_new}, line, as_json=as_json
        )


def read_policy(path: Path) -> Policy:
    with content_of(path, "invalid_policy_file"):
        return Policy.model_validate(_read(path))


def _policy_cells(policy: Policy) -> tuple[str, ...]:
    rules = ", ".join(f"{rule.name} ({rule.action})" for rule in policy.rules)
    return policy.mode.value, policy.on_failure.value, rules, ", ".join(policy.references)


POLICIES = Documents(
    kind="policy",
    listing="policies",
    read=read_policy,
    detail=PolicyDetail,
    columns=("mode", "on failure", "rules", "tasks"),
    cells_of=_policy_cells,
)


def check_card(file: FileArgument, *, registry: RegistryOption = None) -> None:
    """Check a card against the tasks of the registry, without publishing it."""
    card = read_card(file)
    with existing_registry(registry) as opened:
        opened.questions.check(card)
    print_part(f"{card.name}: task {card.task} can answer the question")


def read_card(path: Path) -> QuestionCard:
    with content_of(path, "invalid_question_file"):
        return QuestionCard.model_validate(_read(path))


def read_question(path: Path) -> QuestionCard:
    """Read a card, or a question alone."""
    with content_of(path, "invalid_question_file"):
        return card_of(_read(path))


def _card_cells(card: QuestionCard) -> tuple[str, ...]:
    asked = text_of(card.question.instructions or card.question.yes or "")
    return card.question.type, card.task, asked


def collected(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", envvar="NUNATAK_COLLECT", help="Folder of `nunatak serve --collect`."
        ),
    ],
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all texts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Count the collected texts of each question; `--clear` removes them. No text is printed."""
    with needs_extra("server"):
        from nunatak_server.decisions.collection import Collection
    collection = Collection(folder)
    if clear:
        removed = collection.clear()
        print_outcome({"removed": removed}, f"removed {counted(removed, 'text')}", as_json=as_json)
        return
    found = collection.questions()
    table = plain_table("rows", "oldest", "newest", "question", "file")
    for it in found:
        asked = text_of(it.question.instructions or it.question.yes or "")
        # A shell completes this pattern, and a whole digest is too wide for a terminal.
        table.add_row(str(it.rows), it.oldest, it.newest, asked, f"{it.file.stem[:8]}*.jsonl")
    listed = [it.model_dump(mode="json", exclude_defaults=True) for it in found]
    print_outcome(
        {"collected": listed}, table, as_json=as_json, empty="no texts are collected there"
    )


CARDS = Documents(
    kind="question",
    listing="questions",
    read=read_card,
    detail=QuestionDetail,
    columns=("type", "task", "question"),
    cells_of=_card_cells,
)
question_app = group(
    "question",
    "Publish and check question cards, which let tasks answer typed questions.",
    {
        "put": (CARDS.put, "nunatak question put urgent.json"),
        "list": (CARDS.list, "nunatak question list"),
        "show": (CARDS.show, "nunatak question show urgent > urgent.json"),
        "check": (check_card, "nunatak question check urgent.json"),
        "history": (CARDS.history, "nunatak question history urgent"),
        "rollback": (CARDS.rollback, "nunatak question rollback urgent"),
        "collected": (collected, "nunatak question collected /var/lib/nunatak/collected"),
    },
)
