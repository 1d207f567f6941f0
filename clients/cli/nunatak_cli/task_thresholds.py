"""`nunatak task thresholds`: the precision and the recall of thresholds on a version's scores."""

# ruff: noqa: PLC0415 - a command imports the registry when it runs, not for --help

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nunatak_cli.options import JsonOption, ReferenceArgument, RegistryOption
from nunatak_cli.output import print_outcome
from nunatak_cli.registries import existing_registry
from nunatak_contract.errors import NunatakError

if TYPE_CHECKING:
    from nunatak_contract.evidence import CalibrationRecord, OperatingPoint, ThresholdCurve
    from nunatak_contract.manifest import TaskManifest

MEMBERS = (
    *("threshold", "precision", "precision_interval", "recall", "recall_interval", "f1"),
    *("num_found", "num_right"),
)
"""The members of a point, in the order of JSON."""
Chosen = list[tuple["ThresholdCurve", "tuple[OperatingPoint, ...]"]]
"""The points to show of each curve."""


def thresholds(
    reference: ReferenceArgument,
    *,
    label: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Only this label, with all its thresholds."),
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
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show thresholds on the scores of a calibrated version, and what they find on dev examples."""
    with existing_registry(registry) as opened:
        manifest = opened.resolve(reference)
    calibration = _calibration_of(manifest)
    chosen: Chosen = []
    for curve in _curves(calibration, manifest, label):
        if label is not None and precision is None and recall is None:
            points = curve.operating_points
        else:
            best = curve.best(precision=precision or 0.0, recall=recall or 0.0)
            points = () if best is None else (best,)
        chosen.append((curve, points))
    num_examples = calibration.dev.num_examples
    remark = f"Counts of the {num_examples:,} dev examples, with 95 % intervals (Wilson)."
    if precision is not None or recall is not None:
        remark += " The threshold was chosen on these examples; check it on others."
    document = _json(manifest, calibration, chosen)
    print_outcome(document, _table(manifest, chosen), remark, as_json=as_json)


def _calibration_of(manifest: "TaskManifest") -> "CalibrationRecord":
    if manifest.calibration is None:
        raise NunatakError(
            "invalid_option",
            problem=f"{manifest.reference} has no record of thresholds: expected a version that "
            "was trained with --calibrate; train the task again with this option",
        )
    return manifest.calibration


def _curves(
    calibration: "CalibrationRecord", manifest: "TaskManifest", label: str | None
) -> "tuple[ThresholdCurve, ...]":
    if label is None:
        return calibration.curves
    found = tuple(curve for curve in calibration.curves if curve.label == label)
    if not found:
        known = ", ".join(map(repr, manifest.head.labels))
        raise NunatakError(
            "invalid_option", problem=f"--label expects one of {known}, got {label!r}"
        )
    return found


def _table(manifest: "TaskManifest", chosen: Chosen) -> Table:
    """Return one row per point; a label without a point has a row that says why."""
    from nunatak_contract.enums import ProblemType

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


def _json(
    manifest: "TaskManifest", calibration: "CalibrationRecord", chosen: Chosen
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
                "points": [{name: getattr(it, name) for name in MEMBERS} for it in points],
            }
            for curve, points in chosen
        ],
    }
