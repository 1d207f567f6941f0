"""`nunatak policy` and `nunatak question`: documents are published, listed, shown and checked.

Policies turn answers into decisions. Question cards bind questions to tasks. `nunatak question`
also counts the texts that servers collected.
"""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from pydantic import BaseModel

from nunatak_cli.failures import named_place
from nunatak_cli.options import JsonOption, RegistryOption, group
from nunatak_cli.output import console, plain_table, print_json, print_outcome
from nunatak_cli.registry.registries import existing_registry, published_line
from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_contract.plain_text import counted

if TYPE_CHECKING:
    from nunatak_contract.manifest import TaskManifest
    from nunatak_contract.policies import Condition, Policy
    from nunatak_contract.questions import QuestionCard
    from nunatak_registry import PublishedCard, PublishedPolicy

DocumentT = TypeVar("DocumentT", bound=BaseModel)
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The document: FILE.json, FILE.yaml or FILE.toml.")
]
PolicyArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")]
CardArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the card.")]
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


def put_policy(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Publish a policy under its next number. Servers use the newest version at once."""
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        before = opened.policies.numbers().get(policy.name, 0)
        published = opened.policies.put(policy)
    print_published(published, _policy_json(published), before=before, as_json=as_json)


def list_policies(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the policies with their newest versions."""
    with existing_registry(registry) as opened:
        policies = opened.policies.newest()
    table = plain_table("policy", "version", "mode", "on failure", "rules", "tasks")
    for it in policies:
        policy = it.document
        cells = (policy.name, str(it.version), policy.mode.value, policy.on_failure.value)
        table.add_row(*cells, _rules_text(policy), ", ".join(policy.references))
    print_outcome(
        {"policies": [_policy_json(it) for it in policies]},
        table,
        as_json=as_json,
        empty="no policies yet; `nunatak policy put FILE` publishes one",
    )


def show_policy(
    name: PolicyArgument, *, version: VersionOption = None, registry: RegistryOption = None
) -> None:
    """Print a policy as JSON, the newest version or an older one. `policy put` reads it again."""
    with existing_registry(registry) as opened:
        found = opened.policies.get(name, version)
    print_json(found.document.model_dump(mode="json"))


def check_policy(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Check a policy against the tasks of the registry, without publishing it.

    Says how many dev examples each label of a condition would have caught.
    """
    policy = read_policy(file)
    with existing_registry(registry) as opened:
        opened.policies.check(policy)
        manifests = {it: opened.resolve(it) for it in policy.references}
    rows = [
        {"rule": rule.name, "task": manifests[it.task].reference, "label": label}
        | {"threshold": it.threshold, **_caught(it, label, manifests[it.task])}
        for rule in policy.rules
        for it in rule.conditions
        for label in it.labels
    ]
    table = plain_table("rule", "task", "label", "threshold", "dev examples", "caught", "right")
    for row in rows:
        shown = row if row["threshold"] is not None else row | {"threshold": "own"}
        table.add_row(*("-" if it is None else str(it) for it in shown.values()))
    line = f"{policy.name}: its tasks can decide every condition"
    remark = (
        "own: the task decides. caught: at least so many. -: the version has no record; train it "
        "with --calibrate"
    )
    document = {"policy": policy.name, "conditions": rows}
    print_outcome(document, line, table, remark, as_json=as_json)


def _caught(condition: "Condition", label: str, manifest: "TaskManifest") -> dict[str, int | None]:
    """Return what one label of a condition finds in the examples that chose the best epoch."""
    head, calibration, confusion = manifest.head, manifest.calibration, manifest.confusion
    threshold = condition.threshold
    if threshold is None and head.problem_type is ProblemType.MULTI_LABEL:
        threshold = head.threshold(label)
    if threshold is not None and calibration is not None:
        curve = next(it for it in calibration.curves if it.label == label)
        point = curve.at(threshold)
        found, right = (0, 0) if point is None else (point.num_found, point.num_right)
        num_examples = calibration.dev.num_examples
    elif threshold is None and confusion is not None and label in head.labels:
        counts = confusion.counts
        found = sum(count for (_, predicted), count in counts.items() if predicted == label)
        right, num_examples = counts.get((label, label), 0), sum(counts.values())
    else:
        return dict.fromkeys(("num_examples", "num_found", "num_right"))
    return {"num_examples": num_examples, "num_found": found, "num_right": right}


def history_policy(
    name: PolicyArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """List all versions of a policy, the newest first."""
    with existing_registry(registry) as opened:
        versions = opened.policies.history(name)
    table = plain_table("version", "published", "by", "mode", "rules")
    for it in versions:
        at = it.published_at.isoformat(sep=" ", timespec="seconds")
        table.add_row(str(it.version), at, it.by, it.document.mode.value, _rules_text(it.document))
    document = {"versions": [_policy_json(it) for it in versions]}
    print_outcome(document, table, as_json=as_json)


def rollback_policy(
    name: PolicyArgument,
    *,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="N",
            min=1,
            help="Number of the version to repeat. Absent: the version before the newest.",
        ),
    ] = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish an older version again, under the next number. Servers use the version at once."""
    with existing_registry(registry) as opened:
        before = opened.policies.get(name).version
        published = opened.policies.rollback(name, to)
    print_published(published, _policy_json(published), before=before, as_json=as_json)


def read_policy(path: Path) -> "Policy":
    from nunatak_contract.policies import Policy

    def invalid(place: str, problem: str) -> NunatakError:
        return NunatakError("invalid_policy_file", path=path, place=place, problem=problem)

    return read_document(path, Policy, invalid)


def _rules_text(policy: "Policy") -> str:
    return ", ".join(f"{rule.name} ({rule.action})" for rule in policy.rules)


def _policy_json(published: "PublishedPolicy") -> dict[str, object]:
    from nunatak_contract.wire import PolicyDetail

    return PolicyDetail.model_validate(published).model_dump(mode="json")


policy_app = group(
    "policy",
    "Publish and check policies, which turn the answers of tasks into one decision.",
    {
        "put": (put_policy, "nunatak policy put guard.json"),
        "list": (list_policies, "nunatak policy list"),
        "show": (show_policy, "nunatak policy show guard --version 2 > guard.json"),
        "check": (check_policy, "nunatak policy check guard.yaml"),
        "history": (history_policy, "nunatak policy history guard"),
        "rollback": (rollback_policy, "nunatak policy rollback guard"),
    },
)


def put_card(
    file: FileArgument, *, registry: RegistryOption = None, as_json: JsonOption = False
) -> None:
    """Publish a card under its next number. Servers use the newest version at once."""
    card = read_card(file)
    with existing_registry(registry) as opened:
        before = opened.questions.numbers().get(card.name, 0)
        published = opened.questions.put(card)
    print_published(published, _card_json(published), before=before, as_json=as_json)


def list_cards(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the cards with their newest versions."""
    from nunatak_contract.questions import text_of

    with existing_registry(registry) as opened:
        cards = opened.questions.newest()
    table = plain_table("card", "version", "type", "task", "question")
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


def show_card(
    name: CardArgument,
    *,
    version: VersionOption = None,
    registry: RegistryOption = None,
) -> None:
    """Print a card as JSON, the newest version or an older one. `question put` reads it again."""
    with existing_registry(registry) as opened:
        found = opened.questions.get(name, version)
    print_json(found.document.model_dump(mode="json"))


def check_card(file: FileArgument, *, registry: RegistryOption = None) -> None:
    """Check a card against the tasks of the registry, without publishing it."""
    card = read_card(file)
    with existing_registry(registry) as opened:
        opened.questions.check(card)
    console().print(f"{card.name}: task {card.task} can answer the question")


def read_card(path: Path) -> "QuestionCard":
    from nunatak_contract.questions import QuestionCard

    return read_document(path, QuestionCard, partial(_invalid_card, path))


def read_question(path: Path) -> "QuestionCard":
    """Read a card, or a question alone."""
    from nunatak_contract.questions import card_of

    with named_place(partial(_invalid_card, path)):
        return card_of(_content_of(path))


def _invalid_card(path: Path, place: str, problem: str) -> NunatakError:
    return NunatakError("invalid_question_file", path=path, place=place, problem=problem)


def _card_json(published: "PublishedCard") -> dict[str, object]:
    from nunatak_contract.wire import QuestionDetail

    return QuestionDetail.model_validate(published).model_dump(mode="json")


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
    from nunatak_contract.questions import text_of

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


question_app = group(
    "question",
    "Publish and check question cards, which let tasks answer typed questions.",
    {
        "put": (put_card, "nunatak question put urgent.json"),
        "list": (list_cards, "nunatak question list"),
        "show": (show_card, "nunatak question show urgent > urgent.json"),
        "check": (check_card, "nunatak question check urgent.json"),
        "collected": (collected, "nunatak question collected /var/lib/nunatak/collected"),
    },
)
