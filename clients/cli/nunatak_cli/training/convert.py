"""`nunatak task convert`: a version on the quantized form of its backbone, without training."""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli.asking.predictors import RegistryPredictor
from nunatak_cli.options import (
    DelimiterOption,
    JsonOption,
    LabelColumnOption,
    PairColumnOption,
    ReferenceArgument,
    RegistryOption,
    TextColumnOption,
    row_format,
)
from nunatak_cli.output import print_outcome
from nunatak_cli.registry.registries import existing_registry
from nunatak_cli.training.evaluate import Scored, score_version
from nunatak_contract.errors import NunatakError, needs_extra

if TYPE_CHECKING:
    from nunatak_contract.manifest import TaskDraft
    from nunatak_model import Backbone
    from nunatak_registry import Registry
    from nunatak_rows import RowFormat
    from nunatak_training.kinds import Metric

MAX_NOTE_CHARS = 4096


def convert(  # noqa: PLR0913 - one parameter per option is how typer works
    reference: ReferenceArgument,
    *,
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            metavar="NAME+int8",
            help="The quantized form of the version's backbone.",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Labelled examples, in any format that training reads."),
    ],
    tolerance: Annotated[
        float,
        typer.Option(metavar="POINTS", min=0, help="Points of 100 that the score may fall."),
    ] = 0.5,
    text_column: TextColumnOption = None,
    label_column: LabelColumnOption = None,
    pair_column: PairColumnOption = None,
    delimiter: DelimiterOption = None,
    registry: RegistryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a version for a backbone in 8-bit integers, if its score on examples stays."""
    with needs_extra("training"):
        from nunatak_model import INT8_SUFFIX, load_backbone
        from nunatak_registry import Registry
        from nunatak_versions import draft_quantized
    if not backbone.endswith(INT8_SUFFIX):
        raise NunatakError(
            "invalid_option", problem=f"--backbone expects NAME{INT8_SUFFIX}, got {backbone!r}"
        )
    spelt = row_format(text=text_column, label=label_column, pair=pair_column, delimiter=delimiter)
    with existing_registry(registry) as opened, TemporaryDirectory() as folder:
        manifest = opened.resolve(reference)
        target = load_backbone(backbone)
        draft = draft_quantized(manifest, opened.read_blob(manifest), target)
        source = load_backbone(backbone.removesuffix(INT8_SUFFIX))
        before = _scored(opened, source, manifest.reference, data, spelt)
        with Registry.open(folder) as trial:
            tried = trial.publish(draft.manifest, draft.blobs)
            after = _scored(trial, target, tried.reference, data, spelt)
        metric = _metric_of(before)
        scores = tuple(it.evaluation.metrics[metric] for it in (before, after))
        if not 100 * (scores[0] - scores[1]) <= tolerance:
            raise NunatakError(
                "score_lost",
                reference=manifest.reference,
                metric=metric.value,
                before=scores[0],
                after=scores[1],
                data=data.name,
                backbone=target.name,
                tolerance=tolerance,
            )
        origin = (
            f"Converted from {manifest.reference} on {manifest.backbone.name}, which scores "
            f"{scores[0]:.4f} in {metric} on the examples of the scores."
        )
        published = opened.publish(_with_evidence(draft.manifest, after, origin), draft.blobs)
    document = {
        "reference": published.reference,
        "converted_from": manifest.reference,
        "backbone": target.name,
        "metric": metric.value,
        "before": scores[0],
        "after": scores[1],
        "num_examples": len(after.read),
    }
    line = (
        f"published {published.reference} on {target.name}: {metric} {scores[1]:.4f} on "
        f"{data.name}, {scores[0]:.4f} before"
    )
    print_outcome(document, line, as_json=as_json)


def _scored(
    registry: "Registry", backbone: "Backbone", reference: str, data: Path, spelt: "RowFormat"
) -> Scored:
    from nunatak_server.local import LocalPredictor

    with LocalPredictor(registry, backbone) as predictor:
        asked = RegistryPredictor(registry=registry, predictor=predictor)
        return score_version(reference, data, asked, spelt)


def _metric_of(scored: Scored) -> "Metric":
    """The metric by which training chose the version, or else the first of its kind of task."""
    metrics = list(scored.evaluation.metrics)
    chosen = scored.manifest.metrics[0].name if scored.manifest.metrics else None
    return next((it for it in metrics if it.value == chosen), metrics[0])


def _with_evidence(draft: "TaskDraft", scored: Scored, origin: str) -> "TaskDraft":
    """The draft with the scores that it will have, and with its origin in the note."""
    from nunatak_training.data import ExampleSet
    from nunatak_training.publishing import metric_records

    found = scored.evaluation
    examples = ExampleSet(examples=tuple(it.example for it in scored.read))
    metrics = metric_records(found.metrics, found.intervals, examples)
    note = f"{draft.note}\n{origin}".strip()[-MAX_NOTE_CHARS:]
    return draft.model_copy(update={"metrics": metrics, "note": note})
