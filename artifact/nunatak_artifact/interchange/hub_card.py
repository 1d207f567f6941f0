"""The README of a task on the hub: the task card under the fields that the hub reads."""

from nunatak_registry import HeadKind, TaskManifest, task_card
from nunatak_registry.plain_text import visible_lines

LIBRARY = "nunatak"


def hub_card(manifest: TaskManifest, *, source: str | None) -> str:
    """Write the README of a version; `source` is the repository it will be found in, if any."""
    # Brings an HTTP client and YAML, which nobody else needs.
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415 - as above

    tag, name = pipeline_tag(manifest.head.kind), manifest.backbone.name
    data = "dev examples" if manifest.data is None else manifest.data.name
    fields = ModelCardData(
        model_name=manifest.task,
        library_name=LIBRARY,
        pipeline_tag=tag,
        tags=[LIBRARY, manifest.method.kind],
        # Only ids of the hub are allowed here; a folder's name is none.
        base_model=name if name.count("/") == 1 else None,
        metrics=[metric.name for metric in manifest.metrics] or None,
        eval_results=[
            EvalResult(
                task_type=tag,
                dataset_type=data,
                dataset_name=data,
                dataset_split="dev",
                metric_type=metric.name,
                metric_value=metric.value,
            )
            for metric in manifest.metrics
        ]
        or None,
    )
    yaml = fields.to_yaml()  # pyright: ignore[reportUnknownMemberType] - one argument is untyped
    return visible_lines(f"---\n{yaml}\n---\n\n{task_card(manifest, source=source)}")


def pipeline_tag(kind: HeadKind) -> str:
    """What the hub calls a head of this kind."""
    match kind:
        case HeadKind.SEQUENCE_CLASSIFICATION:
            return "text-classification"
        case HeadKind.TOKEN_CLASSIFICATION:
            return "token-classification"
        case HeadKind.QUESTION_ANSWERING:
            return "question-answering"
        case HeadKind.RANKING:
            return "text-ranking"
