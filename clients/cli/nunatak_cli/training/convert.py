"""`nunatak task convert`: a version on the quantized form of its backbone, without training."""

# ruff: noqa: PLC0415 - a command imports torch when it runs, not for --help

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from nunatak_cli import options
from nunatak_cli.asking.predictors import Predictor
from nunatak_cli.output import print_outcome, tell_rejected
from nunatak_cli.registry.registries import existing_registry
from nunatak_cli.training.evaluate import Scored, score_version
from nunatak_contract.errors import NunatakError, invalid_option, needs_extra
from nunatak_contract.manifest import MAX_NOTE_CHARS
from nunatak_contract.progress import Progress, shown_progress

if TYPE_CHECKING:
    from nunatak_contract.manifest import TaskDraft
    from nunatak_model import Backbone
    from nunatak_registry import Registry
    from nunatak_rows import RowFormat
    from nunatak_training.scoring.evaluation import ConvertedScore


def convert(  # noqa: PLR0913 - one parameter per option is how typer works
    reference: options.ReferenceArgument,
    *,
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone", metavar="NAME+int8", help="The quantized form of the version's backbone."
        ),
    ],
    data: options.ExamplesOption,
    tolerance: Annotated[
        float, typer.Option(metavar="POINTS", min=0, help="Points of 100 that the score may fall.")
    ] = 0.5,
    rows: options.LabelledRows,
    registry: options.RegistryOption = None,
    quiet: options.QuietOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Publish a version for a backbone in 8-bit integers, if its score on examples stays."""
    with needs_extra("training"):
        from nunatak_model import INT8_SUFFIX, load_backbone, quantize_backbone
        from nunatak_registry import Registry
        from nunatak_versions import draft_quantized
    plain = backbone.removesuffix(INT8_SUFFIX)
    if plain == backbone:
        raise invalid_option(f"--backbone expects NAME{INT8_SUFFIX}, got {backbone!r}")
    spelt = rows.spelt_in(str(data))
    with (
        existing_registry(registry) as opened,
        TemporaryDirectory() as folder,
        shown_progress(quiet=quiet, as_json=as_json) as progress,
    ):
        manifest = opened.resolve(reference)
        source = load_backbone(plain)
        target = quantize_backbone(source)
        if manifest.backbone.digest == target.digest:
            raise invalid_option(
                f"{manifest.reference} is on {target.name} already; name a version on "
                f"{source.name}, as in {manifest.task}/N"
            )
        draft = draft_quantized(manifest, opened.read_blob(manifest), target)
        before = _scored(opened, source, manifest.reference, data, spelt, progress)
        with Registry.open(folder) as trial:
            tried = trial.publish(draft.manifest, draft.blobs)
            after = _scored(trial, target, tried.reference, data, spelt, progress)
        found = _compared(before, after, data)
        scores = {"metric": found.metric.value, "before": found.before, "after": found.after}
        if (excess := found.excess(tolerance)) is not None:
            raise NunatakError(
                "score_lost",
                reference=manifest.reference,
                metric=found.metric.value,
                before=found.before,
                after=found.after,
                data=data.name,
                backbone=target.name,
                tolerance=tolerance,
                excess=excess,
            )
        origin = (
            f"Converted from {manifest.reference} on {source.name}, which scores "
            f"{found.before:.4f} in {found.metric} on the examples of the scores."
        )
        evident = _with_evidence(draft.manifest, after, origin)
        published = opened.publish(evident, draft.blobs)
    tell_rejected(spelt)
    is_new = published.created_at == evident.created_at
    document = {
        "reference": published.reference,
        "is_new": is_new,
        "converted_from": manifest.reference,
        "backbone": target.name,
        **scores,
        "num_examples": len(after.read),
    }
    line = (
        f"{'published' if is_new else 'nothing new: the registry has'} {published.reference} on "
        f"{target.name}: {found.metric} {found.after:.4f} on {data.name}, {found.before:.4f} before"
    )
    print_outcome(document, line, as_json=as_json)


def _scored(
    registry: "Registry",
    backbone: "Backbone",
    reference: str,
    data: Path,
    spelt: "RowFormat",
    progress: Progress,
) -> Scored:
    from nunatak_server.local import LocalPredictor

    with LocalPredictor(registry, backbone) as local:
        asked = Predictor(answers=local, manifest=registry.resolve)
        return score_version(reference, data, asked, spelt, progress)


def _compared(before: Scored, after: Scored, data: Path) -> "ConvertedScore":
    """Compare by the metric that chose the version in training, or else the first of its kind."""
    from nunatak_training.errors import too_few
    from nunatak_training.scoring.evaluation import compare, shows_nothing

    examples = before.examples
    if (problem := shows_nothing(examples, before.said)) is not None:
        raise too_few(str(data), problem)
    manifest, metrics = before.manifest, before.evaluation.scores
    chosen = manifest.metrics[0].name if manifest.metrics else None
    return compare(
        next((it for it in metrics if it.value == chosen), next(iter(metrics))),
        examples,
        (before.evaluation, before.said),
        (after.evaluation, after.said),
    )


def _with_evidence(draft: "TaskDraft", scored: Scored, origin: str) -> "TaskDraft":
    """The draft with the scores that it will have, and with its origin in the note."""
    metrics = tuple(scored.evaluation.scores.values())
    # The end of a long note gives way.
    kept = draft.note[: MAX_NOTE_CHARS - len(origin) - 1]
    return draft.model_copy(update={"metrics": metrics, "note": f"{kept}\n{origin}".strip()})
