"""Tasks, versions and aliases, as tables and as JSON values."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from nunatak_contract.manifest import TaskManifest
from nunatak_registry import AliasEvent, CandidateEvent, CandidateEventKind, TaskSummary
from nunatak_registry.cards import method_text, shared_text

SHOWN_LABELS = 5


def task_table(tasks: Iterable[TaskSummary]) -> Table:
    """One row per task; what it shows of a version is that of the bare name."""
    table = Table(box=None, header_style="bold")
    table.add_column("task", style="cyan", no_wrap=True)
    for heading in ("version", "aliases", "method", "shared", "dev score"):
        table.add_column(heading, no_wrap=True)
    # The one column that gives way; its cells are cut instead of wrapped.
    table.add_column("labels")
    for task in tasks:
        manifest = task.manifest
        table.add_row(
            task.name,
            f"{manifest.version} of {len(task.versions)}",
            _aliases(task.aliases),
            method_text(manifest.method),
            shared_text(manifest),
            _score(manifest),
            Text(labels_text(manifest.head.labels), no_wrap=True, overflow="ellipsis"),
        )
    return table


def history_table(events: Iterable[AliasEvent], changes: Iterable[CandidateEvent] = ()) -> Table:
    """One row per move and per change of what runs beside an alias, oldest first."""
    table = Table(box=None, header_style="bold")
    for heading in ("when", "alias", "what", "from", "to"):
        table.add_column(heading)
    # A move comes before the ends that it brings about, which happen at the same time.
    for event in sorted((*events, *changes), key=lambda event: event.at):
        table.add_row(moment(event.at), *_history_cells(event))
    return table


def _history_cells(event: AliasEvent | CandidateEvent) -> tuple[str, str, str, str]:
    if isinstance(event, AliasEvent):
        before = "-" if event.from_version is None else str(event.from_version)
        return event.alias, event.kind.value, before, str(event.to_version)
    it = event.candidate
    match event.kind:
        case CandidateEventKind.SET:
            return it.alias, it.role.value, "-", f"{it.version} ({it.share:.2%})"
        case CandidateEventKind.END:
            return it.alias, f"{it.role.value} end", str(it.version), "-"


def moved_line(event: AliasEvent) -> Text:
    """A move in one line."""
    before = "new" if event.from_version is None else f"was {event.from_version}"
    return Text.assemble(
        (f"{event.task}@{event.alias}", "cyan"), f" -> version {event.to_version} ({before})"
    )


def summary_json(task: TaskSummary) -> dict[str, JsonValue]:
    """A task in the shape of the server's `GET /v1/tasks`."""
    manifest = task.manifest
    return {
        "name": task.name,
        "version": manifest.version,
        "versions": list(task.versions),
        "aliases": dict(task.aliases),
        "candidates": [
            {"alias": it.alias, "role": it.role.value, "version": it.version, "share": it.share}
            for it in task.candidates
        ],
        "head": manifest.head.kind.value,
        "labels": list(manifest.head.labels),
        "method": manifest.method.kind,
        "split_depth": manifest.split_depth,
    }


def event_json(event: AliasEvent) -> dict[str, JsonValue]:
    """A move of an alias."""
    return {
        "task": event.task,
        "alias": event.alias,
        "kind": event.kind.value,
        "version": event.to_version,
        "previous_version": event.from_version,
        "at": event.at.isoformat(),
    }


def _aliases(aliases: dict[str, int]) -> str:
    return ", ".join(f"{alias} = {version}" for alias, version in aliases.items()) or "-"


def labels_text(labels: Sequence[str]) -> str:
    """The first few labels."""
    shown = ", ".join(labels[:SHOWN_LABELS])
    more = len(labels) - SHOWN_LABELS
    return f"{shown} and {more} more" if more > 0 else shown


def _score(manifest: TaskManifest) -> str:
    if not manifest.metrics:
        return "-"
    first = manifest.metrics[0]
    return f"{first.name} {first.value:.4f}"


def moment(at: datetime) -> str:
    """A time to the second."""
    return at.strftime("%Y-%m-%d %H:%M:%S")
