"""`nunatak registry` and `nunatak replicas`, and opening the registry that a command names."""

# ruff: noqa: PLC0415 - the registry imports a database library, which --help does not need

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from nunatak_cli.options import (
    CreateOption,
    JsonOption,
    QuietOption,
    RegistryOption,
    RegistryOptions,
    group,
)
from nunatak_cli.output import plain_table, print_failure, print_outcome, print_part, remark
from nunatak_contract.errors import NunatakError
from nunatak_contract.plain_text import counted
from nunatak_contract.progress import Work, shown_progress

if TYPE_CHECKING:
    from nunatak_registry import AliasEvent, Registry

COPY_EXAMPLE = (
    "nunatak registry copy ./registry 'postgresql+psycopg://nunatak@db/registry"
    "?blobs=s3://bucket/tasks' --create"
)


def copy(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Registry folder or database URL to copy.")
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Registry folder or database URL to copy to.")
    ],
    *,
    task: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Copy only this task. Repeatable.")
    ] = None,
    create: CreateOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy tasks with versions, aliases and history, policies and question cards.

    Repeat the command to go on after a kill.
    """
    copied, failed = list[dict[str, object]](), list[dict[str, object]]()
    with (
        existing_registry(source) as opened,
        publishing_registry(target, create=create) as receiver,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        # Policies and question cards after the tasks, because they are about tasks.
        names = [("task", name) for name in task or opened.copies.tasks()]
        if not task:
            names += [("policy", name) for name in opened.policies.numbers()]
            names += [("question", name) for name in opened.questions.numbers()]
        progress.begin(Work("copy", unit="name", total=len(names)))
        for kind, name in names:
            document, line, error = _tried(kind, name, opened, receiver)
            (copied if error is None else failed).append(document)
            progress.advance()
            if error is not None and not as_json:
                print_failure(error.code, line)
            elif not (as_json or quiet):
                print_part(line)
    if as_json or not (copied or failed):
        empty = "the source has no tasks, no policies and no question cards"
        print_outcome({"copied": copied, "failed": failed}, as_json=as_json, empty=empty)
    if failed:
        raise typer.Exit(1)


def upgrade(
    *,
    registry: RegistryOption = None,
    backup: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the copy of the index as it was. Absent: the folder of a SQLite "
            "index, or the current folder.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Upgrade a copy, and leave the registry as it is.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the index of an older release to the layout of this release.

    Stop the servers of the older release first. Repeat the command to go on after a kill.
    """
    from nunatak_registry import default_location
    from nunatak_registry.index import upgrade as upgrading

    run = upgrading.rehearse if dry_run else upgrading.upgrade
    with shown_progress(quiet=quiet, as_json=as_json) as progress:
        progress.begin(Work("upgrade"))
        done = run(registry or default_location(), folder=backup, tell=progress.tell)
    if done.found == done.layout and not done.steps:
        line = f"nothing to do: the index has layout {done.layout}"
    elif dry_run:
        line = f"a copy has layout {done.layout} now; the registry is unchanged"
    else:
        kept = counted(done.num_versions, "version")
        line = f"the index has layout {done.layout} now; {kept} kept"
    if as_json or not quiet:
        print_outcome({**asdict(done), "dry_run": dry_run}, line, as_json=as_json)
    if done.unreadable:
        text = f"this release cannot read the manifests of {', '.join(done.unreadable)}"
        remark(f"{text}; run `nunatak task verify`")
        raise typer.Exit(1)


def replicas(*, asked: RegistryOptions) -> None:
    """List the server processes of a registry: what they serve, their load and their memory."""
    with existing_registry(asked.registry) as opened:
        listing = opened.replicas.listing()
    empty = f"no server process is listed in {place_of(asked.registry)}"
    document = listing.model_dump(mode="json")
    table = plain_table(
        "replica", "address", "release", "seen", "serves", "lease", "load", "memory"
    )
    for it in listing.replicas:
        load = it.load
        table.add_row(
            it.id,
            it.address,
            it.release,
            f"{it.seen_s:.0f} s ago",
            f"{'current' if it.is_current else 'older'}, {'ready' if load.ready else 'not ready'}",
            "none" if it.lease_s is None else f"{it.lease_s:g} s",
            f"{load.running} running, {load.waiting} waiting",
            f"{counted(load.versions, 'version')}, {decimal(load.version_bytes)} of "
            f"{decimal(load.process_bytes)}",
        )
    print_outcome(document, table, as_json=asked.as_json, empty=empty)


FAILURES_OF_A_TASK = {
    "copy_conflict",
    "task_not_found",
    "invalid_manifest",
    "invalid_policy",
    "invalid_question",
    "corrupt_blob",
}
"""Errors that concern one task or document; the copy goes on with the next."""


def existing_registry(location: str | None) -> "Registry":
    """Open a registry that exists: a mistyped place must not become a new, empty registry."""
    from nunatak_registry import Registry, default_location

    return Registry.open(location or default_location(), create=False)


def place_of(location: str | None) -> str:
    """Return the place of a registry for people, who may have forgotten --registry."""
    from nunatak_registry.locations import default_location, parse_location

    return parse_location(location or default_location()).shown


def publishing_registry(location: str | None, *, create: bool) -> "Registry":
    """Open a registry to publish to.

    The default registry is made at its first use. A registry that the user names is made only with
    `create`.
    """
    from nunatak_registry import Registry, default_location

    return Registry.open(location or default_location(), create=create or not location)


def promote(
    registry: "Registry", task: str, alias: str, version: int, *, expect: int | None = None
) -> tuple["AliasEvent", bool]:
    """Let an alias point to a version; return its last move, and whether this call moved it."""
    earlier = registry.history(task, alias) if alias in registry.aliases(task) else []
    move = registry.promote(task, alias, version, expected_version=expect)
    tell_unanswered(registry, task)
    return move, move not in earlier


def tell_unanswered(registry: "Registry", task: str) -> None:
    """Say which policies the versions that a task has now cannot decide."""
    for problem in registry.policies.undecided(task):
        remark(f"warning: {problem}")


def promoted(registry: "Registry", task: str, alias: str | None, version: int) -> list[str]:
    """Let an alias, if one is named, point to a new version; return the line about it."""
    if alias is None:
        return []
    move, has_moved = promote(registry, task, alias, version)
    return [moved_line(move, has_moved=has_moved)]


def moved_line(move: "AliasEvent", *, has_moved: bool) -> str:
    before = "new" if move.from_version is None else f"was {move.from_version}"
    state = before if has_moved else "it was there already; nothing moved"
    return f"{move.task}@{move.alias} -> version {move.to_version} ({state})"


def published_line(reference: str, *, is_new: bool) -> str:
    return (
        f"published {reference}"
        if is_new
        else f"{reference} was there already with the same content; nothing was published"
    )


def _tried(
    kind: str, name: str, source: "Registry", target: "Registry"
) -> tuple[dict[str, object], str, NunatakError | None]:
    """Copy a task or a document; return the outcome for programs and for people, and the error."""
    try:
        return *_copied(kind, name, source, target), None
    except NunatakError as error:
        if error.code not in FAILURES_OF_A_TASK:
            raise
        return {kind: name, "code": error.code, "detail": str(error)}, str(error), error


def _copied(
    kind: str, name: str, source: "Registry", target: "Registry"
) -> tuple[dict[str, object], str]:
    if kind == "task":
        return _task_copied(name, source, target)
    if kind == "policy":
        versions = target.policies.take(name, source.policies)
    else:
        versions = target.questions.take(name, source.questions)
    done = _versions_text(versions) if versions else "everything was there already"
    return {kind: name, "versions": versions}, f"{kind} {name}: {done}"


def _task_copied(
    name: str, source: "Registry", target: "Registry"
) -> tuple[dict[str, object], str]:
    done = target.copies.take(name, source.copies)
    parts = [
        _versions_text(done.versions) if done.versions else "no new version",
        *([f"{len(done.present)} there already"] if done.present else []),
        f"{counted(done.num_events, 'event')} of aliases",
        decimal(done.num_bytes),
    ]
    is_same = not done.versions and not done.num_events
    document: dict[str, object] = {
        "task": done.task,
        "versions": done.versions,
        "present": done.present,
        "events": done.num_events,
        "written_bytes": done.num_bytes,
    }
    shown = "everything was there already" if is_same else "; ".join(parts)
    return document, f"{done.task}: {shown}"


def _versions_text(versions: Sequence[int]) -> str:
    return f"copied version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


registry_app = group(
    "registry",
    "Copy whole registries, and upgrade those of older releases.",
    {
        "copy": (copy, COPY_EXAMPLE),
        "upgrade": (upgrade, "nunatak registry upgrade --registry ./registry --dry-run"),
    },
)
