"""Tasks, versions and aliases, as tables and as JSON values."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import assert_never

from pydantic import JsonValue
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nunatak_registry import (
    AliasEvent,
    BottleneckRecord,
    FullRecord,
    HeadOnlyRecord,
    LoraRecord,
    MethodRecord,
    TaskManifest,
    TaskSummary,
    TopKRecord,
)

SHOWN_LABELS = 5


def task_table(tasks: Iterable[TaskSummary]) -> Table:
    """One row per task; what it shows of a version is that of the bare name."""
    table = Table(box=None, header_style="bold")
    table.add_column("task", style="cyan", no_wrap=True)
    for heading in ("version", "aliases", "method", "shared layers", "labels", "dev score"):
        table.add_column(heading)
    for task in tasks:
        manifest = task.manifest
        table.add_row(
            task.name,
            f"{manifest.version} of {len(task.versions)}",
            _aliases(task.aliases),
            method_text(manifest.method),
            shared_text(manifest),
            _labels(manifest.head.labels),
            _score(manifest),
        )
    return table


def task_card(manifest: TaskManifest, aliases: dict[str, int]) -> Panel:
    """Everything about one version."""
    names = [alias for alias, version in aliases.items() if version == manifest.version]
    rows = [
        ("aliases", ", ".join(names) or "none"),
        ("labels", _labels(manifest.head.labels)),
        ("method", method_text(manifest.method)),
        ("shared layers", shared_text(manifest)),
        ("parameters", _parameters(manifest)),
        ("stored", f"{decimal(_stored_bytes(manifest))} ({manifest.dtype})"),
        ("backbone", f"{manifest.backbone.name}  {manifest.backbone.digest[:12]}..."),
        ("longest input", f"{manifest.max_length} tokens"),
        ("metrics", _metrics(manifest)),
        ("data", _data(manifest)),
        ("recipe", _recipe(manifest)),
        ("probe", f"{len(manifest.probe.inputs)} inputs, tolerance {manifest.probe.tolerance:g}"),
        ("created", _moment(manifest.created_at)),
        *([("note", manifest.note)] if manifest.note else []),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in rows:
        grid.add_row(name, value)
    title = Text(manifest.reference, style="bold cyan")
    return Panel(grid, title=title, title_align="left", expand=False)


def history_table(events: Iterable[AliasEvent]) -> Table:
    """One row per move, oldest first."""
    table = Table(box=None, header_style="bold")
    for heading in ("when", "alias", "what", "from", "to"):
        table.add_column(heading)
    for event in events:
        table.add_row(
            _moment(event.at),
            event.alias,
            event.kind.value,
            "-" if event.from_version is None else str(event.from_version),
            str(event.to_version),
        )
    return table


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


def method_text(method: MethodRecord) -> str:
    """A method with the one setting that tells it from its like."""
    match method:
        case TopKRecord():
            return f"topk, {method.num_layers} layers"
        case HeadOnlyRecord():
            return "head"
        case BottleneckRecord():
            return f"bottleneck, size {method.size}"
        case LoraRecord():
            return f"lora, rank {method.rank}"
        case FullRecord():
            return "full"
        case _:
            assert_never(method)


def shared_text(manifest: TaskManifest) -> str:
    """How much of the forward pass the version shares with other tasks."""
    if manifest.split_depth is None:
        return "none"
    return f"{manifest.split_depth} of {manifest.backbone.num_layers}"


def _aliases(aliases: dict[str, int]) -> str:
    return ", ".join(f"{alias} = {version}" for alias, version in aliases.items()) or "-"


def _labels(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:SHOWN_LABELS])
    more = len(labels) - SHOWN_LABELS
    return f"{shown} and {more} more" if more > 0 else shown


def _score(manifest: TaskManifest) -> str:
    if not manifest.metrics:
        return "-"
    first = manifest.metrics[0]
    return f"{first.name} {first.value:.4f}"


def _metrics(manifest: TaskManifest) -> str:
    if not manifest.metrics:
        return "none recorded"
    examples = manifest.metrics[0].num_examples
    scores = ", ".join(f"{metric.name} {metric.value:.4f}" for metric in manifest.metrics)
    return f"{scores}  ({examples} examples)"


def _data(manifest: TaskManifest) -> str:
    data = manifest.data
    if data is None:
        return "not recorded"
    return f"{data.name}: {data.num_train} train, {data.num_dev} dev  {data.train_digest[:12]}..."


def _recipe(manifest: TaskManifest) -> str:
    recipe = manifest.recipe
    if recipe is None:
        return "not recorded"
    settings = ", ".join(
        f"{name} {value}"
        for name, value in recipe.settings.items()
        if isinstance(value, int | float | str)
    )
    return f"{settings}  {recipe.digest[:12]}..."


def _parameters(manifest: TaskManifest) -> str:
    counts = manifest.parameter_counts
    return f"{counts.branch + counts.head:,} ({counts.branch:,} branch, {counts.head:,} head)"


def _stored_bytes(manifest: TaskManifest) -> int:
    return sum(blob.size_bytes for blob in manifest.blobs)


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")
