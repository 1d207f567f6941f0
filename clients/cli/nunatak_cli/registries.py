"""`nunatak registry` and `nunatak replicas`, and opening the registry that a command names."""

# ruff: noqa: PLC0415 - the registry imports a database library, which --help does not need

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import JsonValue
from rich.filesize import decimal
from rich.table import Table

from nunatak_cli.failures import print_failure
from nunatak_cli.options import CreateOption, JsonOption, RegistryOption, group
from nunatak_cli.output import console, print_outcome
from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from nunatak_contract.wire import ReplicaListing
    from nunatak_registry import AliasEvent, Registry, TaskCopy

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
        list[str] | None,
        typer.Option(metavar="NAME", help="Copy only this task. Repeatable."),
    ] = None,
    create: CreateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy tasks with versions, aliases and history, and policies, to another registry.

    Repeat the command to go on after a kill.
    """
    outcomes: list[TaskCopy | PolicyCopy | FailedCopy] = []
    with (
        existing_registry(source) as opened,
        publishing_registry(target, create=create) as receiver,
    ):
        policies = () if task else opened.policies.numbers()
        attempts = [
            partial(_copied, name, opened, receiver) for name in task or opened.copies.tasks()
        ]
        # After the tasks, because the rules of a policy are about tasks.
        attempts += [partial(_policy_copied, name, opened, receiver) for name in policies]
        for attempt in attempts:
            outcomes.append(attempt())
            if not as_json:
                _print_outcome(outcomes[-1])
    failed = [it for it in outcomes if isinstance(it, FailedCopy)]
    copied = [_copy_json(it) for it in outcomes if not isinstance(it, FailedCopy)]
    if as_json or not outcomes:
        document = {"copied": copied, "failed": [it.json() for it in failed]}
        empty = "the source has no tasks and no policies"
        print_outcome(document, as_json=as_json, empty=empty)
    if failed:
        raise typer.Exit(1)


def replicas(*, registry: RegistryOption = None, as_json: JsonOption = False) -> None:
    """List the server processes of a registry: what they serve, their load and their memory."""
    with existing_registry(registry) as opened:
        listing = opened.replicas.listing()
    empty = "no server process is listed in this registry"
    document = listing.model_dump(mode="json")
    print_outcome(document, _replicas_table(listing), as_json=as_json, empty=empty)


def wait_for_replicas(registry: "Registry", seconds: float) -> str:
    """Wait until every live replica follows the last change; return the line about them."""
    found = registry.replicas.wait(seconds).replicas
    without_lease = sum(it.lease_s is None for it in found)
    line = f"{len(found)} replica{' follows' if len(found) == 1 else 's follow'}"
    if without_lease:
        line += (
            f"; {without_lease} without a lease (NUNATAK_REGISTRY_LEASE_S): a replica without a "
            "lease that the registry has not heard of for two minutes is not counted"
        )
    return line


def _replicas_table(listing: "ReplicaListing") -> Table:
    """Return one row per replica."""
    table = Table("replica", "address", "release", "seen", "serves", "lease", "load", "memory")
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
            f"{load.versions} versions, {decimal(load.version_bytes)} of "
            f"{decimal(load.process_bytes)}",
        )
    return table


FAILURES_OF_A_TASK = {
    "copy_conflict",
    "task_not_found",
    "invalid_manifest",
    "invalid_policy",
    "corrupt_blob",
}
"""Errors that concern one task or policy; the copy goes on with the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCopy:
    """The outcome of the copy of one policy."""

    policy: str
    versions: tuple[int, ...]
    """Numbers of the versions that were copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCopy:
    """A task or a policy that was not copied, and the reason."""

    kind: Literal["task", "policy"]
    name: str
    error: NunatakError

    def json(self) -> dict[str, JsonValue]:
        """Return the failure for programs."""
        return {self.kind: self.name, "code": self.error.code, "detail": str(self.error)}


@contextmanager
def existing_registry(location: str | None) -> Generator["Registry"]:
    """Open a registry that exists: a mistyped place must not become a new, empty registry."""
    from nunatak_registry import Registry, default_location

    with Registry.open(location or default_location(), create=False) as registry:
        yield registry


@contextmanager
def publishing_registry(location: str | None, *, create: bool) -> Generator["Registry"]:
    """Open a registry to publish to.

    The default registry is made at its first use. A registry that the user names is made only with
    `create`.
    """
    from nunatak_registry import Registry, default_location

    place = location or default_location()
    with Registry.open(place, create=create or not location) as registry:
        yield registry


def promote(
    registry: "Registry", task: str, alias: str, version: int, *, expect: int | None = None
) -> tuple["AliasEvent", bool]:
    """Let an alias point to a version; return its last move, and whether this call moved it."""
    earlier = _moves(registry, task, alias)
    move = registry.promote(task, alias, version, expected_version=expect)
    return move, move not in earlier


def moved_line(move: "AliasEvent", *, has_moved: bool) -> str:
    """Return the line about a promotion."""
    before = "new" if move.from_version is None else f"was {move.from_version}"
    state = before if has_moved else "it was there already; nothing moved"
    return f"{move.task}@{move.alias} -> version {move.to_version} ({state})"


def published_line(reference: str, *, is_new: bool) -> str:
    """Return the line about a publication."""
    return (
        f"published {reference}"
        if is_new
        else f"{reference} was there already with the same content; nothing was published"
    )


def _moves(registry: "Registry", task: str, alias: str) -> "list[AliasEvent]":
    try:
        return registry.history(task, alias)
    except NunatakError as error:
        if error.code != "alias_not_found":
            raise
        return []


def _copied(task: str, source: "Registry", target: "Registry") -> "TaskCopy | FailedCopy":
    try:
        return target.copies.take(task, source.copies)
    except NunatakError as error:
        if error.code not in FAILURES_OF_A_TASK:
            raise
        return FailedCopy(kind="task", name=task, error=error)


def _policy_copied(
    policy: str, source: "Registry", target: "Registry"
) -> "PolicyCopy | FailedCopy":
    try:
        versions = target.policies.take(policy, source.policies)
    except NunatakError as error:
        if error.code not in FAILURES_OF_A_TASK:
            raise
        return FailedCopy(kind="policy", name=policy, error=error)
    return PolicyCopy(policy=policy, versions=tuple(versions))


def _print_outcome(outcome: "TaskCopy | PolicyCopy | FailedCopy") -> None:
    if isinstance(outcome, FailedCopy):
        print_failure(outcome.error.code, str(outcome.error))
    else:
        console().print(_copied_line(outcome), soft_wrap=True)


def _copied_line(done: "TaskCopy | PolicyCopy") -> str:
    subject = f"policy {done.policy}" if isinstance(done, PolicyCopy) else done.task
    new = ", ".join(map(str, done.versions))
    copied = f"copied version{'s' if len(done.versions) > 1 else ''} {new}"
    if not new and (isinstance(done, PolicyCopy) or not done.num_events):
        return f"{subject}: everything was there already"
    if isinstance(done, PolicyCopy):
        return f"{subject}: {copied}"
    parts = [
        copied if new else "no new version",
        *([f"{len(done.present)} there already"] if done.present else []),
        f"{done.num_events} event{'' if done.num_events == 1 else 's'} of aliases",
        decimal(done.num_bytes),
    ]
    return f"{subject}: {'; '.join(parts)}"


def _copy_json(done: "TaskCopy | PolicyCopy") -> dict[str, JsonValue]:
    if isinstance(done, PolicyCopy):
        return {"policy": done.policy, "versions": list(done.versions)}
    return {
        "task": done.task,
        "versions": list(done.versions),
        "present": list(done.present),
        "events": done.num_events,
        "written_bytes": done.num_bytes,
    }


registry_app = group(
    "registry",
    "Copy whole registries.",
    {
        "copy": (
            copy,
            COPY_EXAMPLE,
        ),
    },
)
