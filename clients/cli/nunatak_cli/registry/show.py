"""`nunatak task show`, `versions`, `diff` and `thresholds`: what a version is and how it scores."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nunatak_cli.options import NameArgument, ReferenceArgument, RegistryOptions
from nunatak_cli.output import facts_table, plain_table, print_outcome, print_text
from nunatak_cli.registry.registries import existing_registry
from nunatak_contract.cards import (
    Compared,
    compare,
    confusion_matrix,
    facts,
    first_labels,
    score_text,
    shared_text,
    stored_bytes,
    task_card,
    worst_mistakes,
)
from nunatak_contract.enums import ProblemType
from nunatak_contract.errors import invalid_option
from nunatak_contract.evidence import (
    CalibrationRecord,
    MetricRecord,
    OperatingPoint,
    ThresholdCurve,
)
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.plain_text import counted

if TYPE_CHECKING:
    from nunatak_registry import ListedVersion

SHOWN_LABELS = 5
"""Most labels in a panel; JSON has all labels."""


def show(
    reference: ReferenceArgument,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the task card as Markdown.")
    ] = False,
    asked: RegistryOptions,
) -> None:
    """Show everything about one version: labels, method, scores, confusion, data and recipe."""
    with existing_registry(asked.registry) as opened:
        manifest = opened.resolve(reference)
        aliases = opened.aliases(manifest.task)
    if markdown and not asked.as_json:
        print_text(task_card(manifest))
    else:
        document = {"aliases": dict(aliases), "manifest": manifest}
        print_outcome(document, _card(manifest, aliases), as_json=asked.as_json)


def versions(name: NameArgument, *, asked: RegistryOptions) -> None:
    """List all versions of a task: when each was published, its score, size and aliases."""
    with existing_registry(asked.registry) as opened:
        listed = opened.listed_versions(name)
    document = {"task": name, "versions": [_version_json(it) for it in listed]}
    print_outcome(document, _versions_table(listed), as_json=asked.as_json)


def diff(
    left: ReferenceArgument,
    right: Annotated[str, typer.Argument(metavar="REF", help="The version to compare with REF.")],
    *,
    asked: RegistryOptions,
) -> None:
    """Show two versions side by side: method, labels, scores, recipe and sizes."""
    with existing_registry(asked.registry) as opened:
        pair = opened.resolve(left), opened.resolve(right)
    rows = compare(*pair)
    document = {
        "left": pair[0].reference,
        "right": pair[1].reference,
        "properties": {row.name: {"left": row.left, "right": row.right} for row in rows},
        "differing": [row.name for row in rows if row.differs],
    }
    print_outcome(document, _comparison_table(*pair, rows), as_json=asked.as_json)


def labels_text(labels: Sequence[str]) -> str:
    return first_labels(labels, SHOWN_LABELS)


def moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


def score_of(manifest: TaskManifest) -> str:
    if not manifest.metrics:
        return "-"
    first = manifest.metrics[0]
    return f"{first.name} {first.value:.4f}"


def _versions_table(listed: "Iterable[ListedVersion]") -> Table:
    headings = ("version", "published", "aliases", "moved by", "method", "shared", "dev score")
    table = plain_table(*headings, "stored", right=["version", "stored"])
    table.columns[0].style = "cyan"
    for it in listed:
        names = [move.alias for move in it.moves]
        names += [f"{c.alias} {c.role} {c.share:.2%}" for c in it.candidates]
        movers = dict.fromkeys(move.by for move in it.moves)
        facts = ("damaged; run `nunatak task verify`", "-", "-", "-")
        if (manifest := it.manifest) is not None:
            facts = (
                manifest.method.text,
                shared_text(manifest),
                score_of(manifest),
                decimal(stored_bytes(manifest)),
            )
        aliases, moved_by = ", ".join(names) or "-", ", ".join(movers) or "-"
        table.add_row(str(it.version), moment(it.published_at), aliases, moved_by, *facts)
    return table


def _version_json(listed: "ListedVersion") -> dict[str, object]:
    """Return one version; a damaged manifest is null."""
    manifest = listed.manifest
    return {
        "version": listed.version,
        "published_at": listed.published_at,
        "aliases": [{"alias": it.alias, "since": it.at, "by": it.by} for it in listed.moves],
        "candidates": [
            {"alias": it.alias, "role": it.role, "share": it.share} for it in listed.candidates
        ],
        "stored_bytes": None if manifest is None else stored_bytes(manifest),
        "manifest": manifest,
    }


def _card(manifest: TaskManifest, aliases: dict[str, int]) -> RenderableType:
    """Return a panel of facts, followed by the confusion matrix or the worst mistakes."""
    names = [alias for alias, version in aliases.items() if version == manifest.version]
    rows = {
        "aliases": ", ".join(names) or "none",
        **facts(manifest, max_labels=SHOWN_LABELS),
        "metrics": _metrics(manifest.metrics),
        **({"test metrics": _metrics(manifest.test_metrics)} if manifest.test_metrics else {}),
        "data": _data(manifest),
        "recipe": _recipe(manifest),
        "probe": f"{counted(len(manifest.probe.inputs), 'input')}, "
        f"tolerance {manifest.probe.tolerance:g}",
        **({"note": manifest.note} if manifest.note else {}),
    }
    title = Text(manifest.reference, style="bold cyan")
    panel = Panel(facts_table(rows), title=title, title_align="left", expand=False)
    return Group(panel, *_confusion(manifest))


def _confusion(manifest: TaskManifest) -> list[RenderableType]:
    matrix, mistakes = confusion_matrix(manifest), worst_mistakes(manifest)
    if matrix is not None:
        return [matrix_table(manifest.head.labels, matrix)]
    if not mistakes:
        return []
    table = plain_table("true", "predicted instead", "times", right=["times"])
    table.title, table.title_justify = "most frequent mistakes", "left"
    for mistake in mistakes:
        table.add_row(mistake.truth, mistake.predicted, str(mistake.count))
    return [table]


def matrix_table(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Table:
    table = plain_table("true \\ predicted", *labels, right=labels)
    table.columns[0].style = "bold"
    for row, (label, counts) in enumerate(zip(labels, matrix, strict=True)):
        cells = [
            Text(str(count), style="green" if column == row else "red" if count else "dim")
            for column, count in enumerate(counts)
        ]
        table.add_row(label, *cells)
    return table


def _metrics(metrics: Sequence[MetricRecord]) -> str:
    if not metrics:
        return "none recorded"
    examples = metrics[0].num_examples
    scores = ", ".join(f"{metric.name} {score_text(metric)}" for metric in metrics)
    return f"{scores}  ({counted(examples, 'example')})"


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


def _comparison_table(left: TaskManifest, right: TaskManifest, rows: Iterable[Compared]) -> Table:
    """Return one row per property; equal properties are dim."""
    table = plain_table()
    table.add_column("")
    table.add_column(left.reference, overflow="fold")
    table.add_column(right.reference, overflow="fold")
    table.add_column("change", justify="right", no_wrap=True)
    for row in rows:
        cells = (row.name, _value_text(row.left), _value_text(row.right), _change(row))
        table.add_row(*cells, style=None if row.differs else "dim")
    return table


def _value_text(value: JsonValue) -> str:
    match value:
        case None:
            return "-"
        case list():
            return labels_text([str(item) for item in value]) or "none"
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def _change(row: Compared) -> str:
    change = row.change
    if not change:
        return ""
    return f"{change:+,}" if isinstance(change, int) else f"{change:+.4f}"


POINT_MEMBERS = (
    *("threshold", "precision", "precision_interval", "recall", "recall_interval", "f1"),
    *("num_found", "num_right"),
)
"""The members of a point, in the order of JSON."""
Chosen = list[tuple[ThresholdCurve, tuple[OperatingPoint, ...]]]
"""The points to show of each curve."""


def thresholds(
    reference: ReferenceArgument,
    *,
    label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Only this label, with all its thresholds.")
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            min=0,
            max=1,
            help="The threshold with the largest recall of those with at least this precision.",
        ),
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            min=0,
            max=1,
            help="The threshold with the largest precision of those with at least this recall.",
        ),
    ] = None,
    asked: RegistryOptions,
) -> None:
    """Show thresholds on the scores of a calibrated version, and what they find on dev examples."""
    with existing_registry(asked.registry) as opened:
        manifest = opened.resolve(reference)
    calibration = manifest.calibration
    if calibration is None:
        raise invalid_option(
            f"{manifest.reference} has no record of thresholds: expected a version that "
            "was trained with --calibrate; train the task again with this option"
        )
    curves = [it for it in calibration.curves if label in {None, it.label}]
    if label is not None and not curves:
        known = ", ".join(map(repr, manifest.head.labels))
        raise invalid_option(f"--label expects one of {known}, got {label!r}")
    is_wanted = precision is not None or recall is not None
    chosen: Chosen = []
    for curve in curves:
        if label is not None and not is_wanted:
            points = curve.operating_points
        else:
            best = curve.best(precision=precision or 0.0, recall=recall or 0.0)
            points = () if best is None else (best,)
        chosen.append((curve, points))
    num_examples = calibration.dev.num_examples
    remark = f"Counts of {counted(num_examples, 'dev example')}, with 95 % intervals (Wilson)."
    if is_wanted:
        remark += " The threshold was chosen on these examples; check it on others."
    document = _thresholds_json(manifest, calibration, chosen)
    print_outcome(document, _thresholds_table(manifest, chosen), remark, as_json=asked.as_json)


def _thresholds_table(manifest: TaskManifest, chosen: Chosen) -> Table:
    """Return one row per point; a label without a point has a row that says why."""
    is_multi = manifest.head.problem_type is ProblemType.MULTI_LABEL
    # Narrow enough for a terminal of 80 columns.
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("label", style="cyan", min_width=6, overflow="fold")
    headings = ("threshold", "precision", "recall", "found", "right", "labelled")
    for heading in (*(["in use"] if is_multi else []), *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    for curve, points in chosen:
        name = [curve.label, *([f"{manifest.head.threshold(curve.label):g}"] if is_multi else [])]
        for point in points:
            table.add_row(
                *name,
                f"{point.threshold:g}",
                _share_text(point.precision, point.precision_interval),
                _share_text(point.recall, point.recall_interval),
                str(point.num_found),
                str(point.num_right),
                str(point.num_expected),
            )
        if not points:
            reason = "not reached" if curve.num_expected else "no dev example"
            table.add_row(*name, reason, *[""] * 4, str(curve.num_expected))
    return table


def _share_text(share: float, interval: tuple[float, float]) -> str:
    return f"{share:.3f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _thresholds_json(
    manifest: TaskManifest, calibration: CalibrationRecord, chosen: Chosen
) -> dict[str, object]:
    return {
        "reference": manifest.reference,
        "temperature": calibration.temperature,
        "num_examples": calibration.dev.num_examples,
        "data_digest": calibration.dev.data_digest,
        "labels": [
            {
                "label": curve.label,
                "num_expected": curve.num_expected,
                "points": [{name: getattr(it, name) for name in POINT_MEMBERS} for it in points],
            }
            for curve, points in chosen
        ],
    }
