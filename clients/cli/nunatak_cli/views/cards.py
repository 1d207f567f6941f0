"""Everything about one version, for a terminal; `nunatak_registry.task_card` has it as Markdown."""

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nunatak_cli.views.tasks import labels_text, moment
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Matrix, confusion_matrix, worst_mistakes
from nunatak_registry.cards import (
    head_text,
    method_text,
    own_parameters,
    saved_share,
    score_text,
    shared_text,
    stored_bytes,
)


def task_card(manifest: TaskManifest, aliases: dict[str, int]) -> RenderableType:
    """A panel of facts, and the confusion matrix if there is one."""
    names = [alias for alias, version in aliases.items() if version == manifest.version]
    rows = [
        ("aliases", ", ".join(names) or "none"),
        ("head", head_text(manifest.head)),
        ("labels", labels_text(manifest.head.labels) or "none"),
        ("method", method_text(manifest.method)),
        ("shared layers", shared_text(manifest)),
        ("parameters", _parameters(manifest)),
        ("stored", f"{decimal(stored_bytes(manifest))} ({manifest.dtype})"),
        ("backbone", f"{manifest.backbone.name}  {manifest.backbone.digest[:12]}..."),
        ("longest input", f"{manifest.max_length} tokens"),
        ("metrics", _metrics(manifest)),
        ("data", _data(manifest)),
        ("recipe", _recipe(manifest)),
        ("probe", f"{len(manifest.probe.inputs)} inputs, tolerance {manifest.probe.tolerance:g}"),
        ("created", moment(manifest.created_at)),
        *([("note", manifest.note)] if manifest.note else []),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in rows:
        grid.add_row(name, value)
    title = Text(manifest.reference, style="bold cyan")
    panel = Panel(grid, title=title, title_align="left", expand=False)
    return Group(panel, *_confusion(manifest))


def _confusion(manifest: TaskManifest) -> list[RenderableType]:
    matrix, mistakes = confusion_matrix(manifest), worst_mistakes(manifest)
    if matrix is not None:
        return [_matrix_table(matrix)]
    if not mistakes:
        return []
    table = Table(
        box=None, header_style="bold", title="most frequent mistakes", title_justify="left"
    )
    for heading in ("true", "predicted instead"):
        table.add_column(heading)
    table.add_column("times", justify="right")
    for mistake in mistakes:
        table.add_row(mistake.truth, mistake.predicted, str(mistake.count))
    return [table]


def _matrix_table(matrix: Matrix) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("true \\ predicted", style="bold")
    for label in matrix.labels:
        table.add_column(label, justify="right")
    for row, (label, counts) in enumerate(zip(matrix.labels, matrix.rows, strict=True)):
        cells = [
            Text(str(count), style="green" if column == row else "red" if count else "dim")
            for column, count in enumerate(counts)
        ]
        table.add_row(label, *cells)
    return table


def _metrics(manifest: TaskManifest) -> str:
    if not manifest.metrics:
        return "none recorded"
    examples = manifest.metrics[0].num_examples
    scores = ", ".join(f"{metric.name} {score_text(metric)}" for metric in manifest.metrics)
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
    counts, saved = manifest.parameter_counts, saved_share(manifest)
    spared = "" if saved is None else f"; {saved:.1%} saved"
    return f"{own_parameters(manifest):,} ({counts.branch:,} branch, {counts.head:,} head){spared}"
