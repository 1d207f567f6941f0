"""`nunatak task`: list tasks, move aliases, run candidates next to them, delete and clean.

The files next to this one hold the other commands of the group.
"""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from nunatak_cli import options
from nunatak_cli.output import facts_table, plain_table, print_outcome, wire_json
from nunatak_cli.registry import registries
from nunatak_cli.registry.exchange import export, import_, pull, push
from nunatak_cli.registry.registries import existing_registry, place_of
from nunatak_cli.registry.show import (
    diff,
    labels_text,
    moment,
    score_of,
    show,
    thresholds,
    versions,
)
from nunatak_cli.registry.verify import ProvingOptions, verify
from nunatak_contract.cards import shared_text
from nunatak_contract.enums import CandidateRole
from nunatak_contract.errors import invalid_option
from nunatak_contract.plain_text import counted
from nunatak_contract.wire import PastCandidate, PastMove, TaskSummary

if TYPE_CHECKING:
    from nunatak_client import ShadowReport
    from nunatak_registry import AliasEvent, CandidateEvent, ListedTask, Registry


@dataclass(frozen=True, kw_only=True)
class MoveOptions:
    alias: Annotated[str, typer.Option(metavar="ALIAS", help="Alias to move.")] = "prod"
    expect: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Move only if the alias points at version N now (0: the alias does not exist).",
        ),
    ] = None
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return when every live server process follows the change."),
    ] = False
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="With --wait: fail after this time.")
    ] = 30

    def followed(self, registry: "Registry") -> list[str]:
        """Wait until every live replica follows, if asked to; return the line about them."""
        if not self.wait:
            return []
        found = registry.replicas.wait(self.timeout).replicas
        line = f"{len(found)} replica{' follows' if len(found) == 1 else 's follow'}"
        if without_lease := sum(it.lease_s is None for it in found):
            line += (
                f"; {without_lease} without a lease (NUNATAK_REGISTRY_LEASE_S): a replica without "
                "a lease that the registry has not heard of for two minutes is not counted"
            )
        return [line]


def list_tasks(*, asked: options.RegistryOptions) -> None:
    """List the tasks, each with the version that its bare name serves."""
    with existing_registry(asked.registry) as opened:
        tasks = opened.tasks()
    known = [wire_json(TaskSummary, it) for it in tasks]
    for it in known:
        del it["resident_versions"]  # which only a server knows
    empty = f"no tasks yet in {place_of(asked.registry)}; publish one with `nunatak train`"
    print_outcome({"tasks": known}, _tasks_table(tasks), as_json=asked.as_json, empty=empty)


def history(
    name: options.NameArgument,
    *,
    alias: Annotated[
        str | None, typer.Option(metavar="ALIAS", help="Only this alias. Absent: all aliases.")
    ] = None,
    asked: options.RegistryOptions,
) -> None:
    """Show each move of a task's aliases and each change of their candidates: when, and by whom."""
    with existing_registry(asked.registry) as opened:
        aliases = opened.aliases(name) if alias is None else [alias]
        moves = [move for each in aliases for move in opened.history(name, each)]
        changes = [change for each in aliases for change in opened.rollouts.history(name, each)]
    moves.sort(key=lambda move: move.at)
    changes.sort(key=lambda change: change.at)
    document = {
        "task": name,
        "events": [wire_json(PastMove, move) for move in moves],
        "candidates": [wire_json(PastCandidate, change) for change in changes],
    }
    empty = f"task {name!r} has no aliases; its newest version is served"
    print_outcome(document, _history_table(moves, changes), as_json=asked.as_json, empty=empty)


def promote(
    reference: options.VersionArgument, *, asked: MoveOptions, proving: ProvingOptions
) -> None:
    """Load and probe a version, then point an alias at it. Servers follow within a second."""
    name, version = options.version_named(reference)
    with existing_registry(proving.registry) as opened:
        proving.prove(opened, name, version)
        move, has_moved = registries.promote(
            opened, name, asked.alias, version, expect=asked.expect
        )
        followed = asked.followed(opened)
    line = registries.moved_line(move, has_moved=has_moved)
    document = {**wire_json(PastMove, move), "moved": has_moved}
    print_outcome(document, line, *followed, as_json=proving.as_json)


def rollback(name: options.NameArgument, *, asked: MoveOptions, proving: ProvingOptions) -> None:
    """Point an alias back at its previous version. A second rollback goes further back."""
    alias, expect = asked.alias, asked.expect
    with existing_registry(proving.registry) as opened:
        if not proving.unprobed:
            # `expect` keeps the rollback from reaching another version than the proven one.
            expect, target = opened.next_rollback(name, alias, expected_version=expect)
            proving.prove(opened, name, target)
        move = opened.rollback(name, alias, expected_version=expect)
        registries.tell_unanswered(opened, name)
        followed = asked.followed(opened)
    line = registries.moved_line(move, has_moved=True)
    print_outcome(wire_json(PastMove, move), line, *followed, as_json=proving.as_json)


@dataclass(frozen=True, kw_only=True)
class CandidateOptions:
    share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Share of the requests, above 0 and up to 1. Absent: 1 for a shadow.",
        ),
    ] = None
    end: Annotated[bool, typer.Option("--end", help="End the candidate.")] = False
    alias: Annotated[str, typer.Option(metavar="ALIAS", help="Alias of the candidate.")] = "prod"
    expect: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Change only if version N is the candidate now (0: no candidate).",
        ),
    ] = None


CandidateArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME[/VERSION]",
        help="The candidate version, such as tone/3; the task alone if no candidate starts.",
    ),
]


def canary(
    candidate: CandidateArgument, *, asked: CandidateOptions, proving: ProvingOptions
) -> None:
    """Start a canary, which answers a share of an alias's requests, or end it."""
    if not asked.end and asked.share is None:
        raise invalid_option("a canary needs --share, or --end")
    _change(CandidateRole.CANARY, candidate, asked, proving)


def shadow(
    candidate: CandidateArgument,
    *,
    asked: CandidateOptions,
    report: Annotated[
        bool, typer.Option("--report", help="Show the shadow's report on the server of --server.")
    ] = False,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Address of a server.")] = None,
    proving: ProvingOptions,
) -> None:
    """Start a shadow, which runs without answering, show its report, or end it."""
    if report and not asked.end and asked.share is None:
        _report(candidate, asked.alias, server=server, as_json=proving.as_json)
        return
    if report or server is not None:
        raise invalid_option(
            "--report takes --server, and no --share or --end; a change goes to the registry, "
            "and its servers follow"
        )
    _change(CandidateRole.SHADOW, candidate, asked, proving)


def _change(
    role: CandidateRole, named: str, asked: CandidateOptions, proving: ProvingOptions
) -> None:
    from nunatak_registry import Candidate

    alias, share = asked.alias, asked.share
    if asked.end and ("/" in named or share is not None):
        raise invalid_option("--end takes the name of the task alone, and no --share")
    name, version = (named, None) if asked.end else options.version_named(named)
    earlier = list["CandidateEvent"]()
    with existing_registry(proving.registry) as opened:
        if version is None:
            event = opened.rollouts.end(name, alias, role, expected_version=asked.expect)
        else:
            proving.prove(opened, name, version)
            earlier = opened.rollouts.history(name, alias)
            full = 1.0 if share is None else share
            candidate = Candidate(task=name, alias=alias, role=role, version=version, share=full)
            event = opened.rollouts.set(candidate, expected_version=asked.expect)
            registries.tell_unanswered(opened, name)
    is_new = event not in earlier
    document = {**wire_json(PastCandidate, event), "changed": is_new}
    print_outcome(document, _candidate_line(event, is_new=is_new), as_json=proving.as_json)


def _report(name: str, alias: str, *, server: str | None, as_json: bool) -> None:
    from nunatak_client import Client

    if server is None:
        raise invalid_option("--report needs --server, because each server has its own report")
    with Client(server) as client:
        found = client.shadow_report(name, alias=alias)
    print_outcome(found.model_dump(mode="json"), _report_table(found), as_json=as_json)


def delete(
    reference: options.VersionArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    asked: options.RegistryOptions,
) -> None:
    """Delete a version that no alias or server holds; its number is never used again."""
    name, version = options.version_named(reference)
    with existing_registry(asked.registry) as opened:
        reference = opened.resolve(reference).reference
        if not yes:
            try:
                typer.confirm(f"Delete {reference} for good?", abort=True, err=True)
            except typer.Abort as error:
                raise invalid_option(f"{reference} stays: give --yes to delete it") from error
        opened.delete(name, version)
    document = {"task": name, "version": version, "deleted": True}
    print_outcome(document, f"deleted {reference}", as_json=asked.as_json)


def collect(
    *,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Keep blobs that were used or written within this time; choose more than the "
            "longest load or publish takes.",
        ),
    ] = 3600.0,
    asked: options.RegistryOptions,
) -> None:
    """Remove the blobs of deleted versions and the files that killed writers left."""
    with existing_registry(asked.registry) as opened:
        collected = opened.gc(grace)
    line = (
        f"removed {counted(len(collected.removed_blobs), 'blob')} and "
        f"{counted(collected.removed_temporary, 'temporary file')}; "
        f"{collected.kept_young} too young"
    )
    members = ("removed_blobs", "removed_temporary", "kept_young")
    document = {name: getattr(collected, name) for name in members}
    print_outcome(document, line, as_json=asked.as_json)


def _tasks_table(tasks: "Iterable[ListedTask]") -> Table:
    table = plain_table()
    table.add_column("task", style="cyan", no_wrap=True)
    table.add_column("version", no_wrap=True)
    # On a narrow terminal these wrap, so that names stay whole; labels are cut.
    for heading in ("aliases", "method", "shared", "dev score", "labels"):
        table.add_column(heading)
    for task in tasks:
        manifest = task.manifest
        table.add_row(
            task.name,
            f"{manifest.version} of {len(task.versions)}",
            _aliases(task),
            manifest.method.text,
            shared_text(manifest),
            score_of(manifest),
            Text(labels_text(manifest.head.labels), no_wrap=True, overflow="ellipsis"),
        )
    return table


def _history_table(events: "Iterable[AliasEvent]", changes: "Iterable[CandidateEvent]") -> Table:
    table = plain_table("when", "alias", "what", "from", "to", "by")
    # The sort is stable: a move stays before the candidates that it ends at the same time.
    for event in sorted((*events, *changes), key=lambda event: event.at):
        table.add_row(moment(event.at), *_history_cells(event), event.by)
    return table


def _history_cells(event: "AliasEvent | CandidateEvent") -> tuple[str, str, str, str]:
    from nunatak_registry import AliasEvent, CandidateEventKind

    if isinstance(event, AliasEvent):
        before = "-" if event.from_version is None else str(event.from_version)
        return event.alias, event.kind.value, before, str(event.to_version)
    candidate = event.candidate
    match event.kind:
        case CandidateEventKind.SET:
            share = f"{candidate.version} ({candidate.share:.2%})"
            return candidate.alias, candidate.role.value, "-", share
        case CandidateEventKind.END:
            return candidate.alias, f"{candidate.role.value} end", str(candidate.version), "-"


def _candidate_line(event: "CandidateEvent", *, is_new: bool) -> Text:
    from nunatak_registry import CandidateEventKind

    candidate = event.candidate
    name = (f"{candidate.task}@{candidate.alias}", "cyan")
    match event.kind:
        case CandidateEventKind.SET:
            run = f"{candidate.role} version {candidate.version}"
            already = "" if is_new else " already; nothing changed"
            share = f"{candidate.share:.2%} of its requests"
            return Text.assemble(name, f" has {run} on {share}{already}")
        case CandidateEventKind.END:
            return Text.assemble(
                name, f" has no {candidate.role} any more (was version {candidate.version})"
            )


def _report_table(report: "ShadowReport") -> Table:
    bounds = {
        "beyond" if it.up_to is None else f"up to {it.up_to:g}": it.inputs
        for it in report.drift_histogram
    }
    return facts_table(
        {
            "task": f"{report.task}@{report.alias}",
            "answers": f"version {report.version}",
            "shadow": f"version {report.shadow_version} on {report.share:.2%} of requests",
            "compared": counted(report.compared, "input"),
            "agreement": _number(report.agreement),
            "mean drift": _number(report.mean_drift),
            "max drift": _number(report.max_drift),
            **{f"drift {bound}": counted(inputs, "input") for bound, inputs in bounds.items()},
            "errors": counted(report.errors, "input"),
            "dropped": counted(report.dropped, "input"),
        }
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _aliases(task: "ListedTask") -> str:
    """Return each alias with its version and its candidates, as `prod = 3 (canary 4: 20%)`."""
    candidates = defaultdict[str, str](str)
    for it in task.candidates:
        candidates[it.alias] += f" ({it.role} {it.version}: {it.share:.0%})"
    found = (f"{alias} = {version}{candidates[alias]}" for alias, version in task.aliases.items())
    return ", ".join(found) or "-"


PURPOSE = "Look at a registry's tasks, move aliases (servers follow), exchange, check, clean."
COMMANDS: Mapping[str, tuple[Callable[..., None], str]] = {
    "list": (list_tasks, "nunatak task list"),
    "show": (show, "nunatak task show tone@prod"),
    "versions": (versions, "nunatak task versions tone"),
    "diff": (diff, "nunatak task diff tone/1 tone@prod"),
    "thresholds": (thresholds, "nunatak task thresholds tone@prod --label urgent --precision 0.95"),
    "history": (history, "nunatak task history tone --alias prod"),
    "promote": (promote, "nunatak task promote tone/3 --alias prod --expect 2 --wait"),
    "rollback": (rollback, "nunatak task rollback tone --alias prod"),
    "canary": (canary, "nunatak task canary tone/4 --share 0.1"),
    "shadow": (shadow, "nunatak task shadow tone/5 --share 0.5"),
    "verify": (verify, "nunatak task verify --probe"),
    "import": (import_, "nunatak task import ./finetuned --task tone --backbone bert-base-uncased"),
    "export": (export, "nunatak task export tone@prod ./tone --format transformers"),
    "push": (push, "nunatak task push tone@prod owner/tone"),
    "pull": (pull, "nunatak task pull owner/tone --task tone --promote prod"),
    "delete": (delete, "nunatak task delete tone/1"),
    "gc": (collect, "nunatak task gc --grace 86400"),
}
"""The commands of the group, each with an example; `task convert` stands with training."""
