"""What parts of a manifest are called when people read them."""

from typing import Final, assert_never

from nunatak_registry.manifest import (
    BottleneckRecord,
    FullRecord,
    HeadOnlyRecord,
    HeadRecord,
    LoraRecord,
    MethodRecord,
    MetricRecord,
    OnLong,
    RankingScore,
    TaskManifest,
    TopKRecord,
)

LONG_SHARE_TO_WARN_OF: Final = 0.01
"""From so many examples on that do not fit, what is not read of them matters."""


def method_text(method: MethodRecord) -> str:
    """A method with the one setting that tells it from its like."""
    match method:
        case TopKRecord():
            return f"topk, {method.num_layers} layer{'s' if method.num_layers > 1 else ''}"
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


def head_text(head: HeadRecord) -> str:
    """What is predicted: `token classification`, `regression`."""
    if head.score is RankingScore.NONE:
        return "ranking, scored by its logits"
    return (head.problem_type or head.kind).value.replace("_", " ")


def shared_text(manifest: TaskManifest) -> str:
    """How much of the forward pass the version shares with other tasks."""
    if manifest.split_depth is None:
        return "none"
    return f"{manifest.split_depth} of {manifest.backbone.num_layers}"


def score_text(metric: MetricRecord) -> str:
    """A score, with its interval at 95 % if it was measured."""
    value = f"{metric.value:.4f}"
    if metric.interval is None:
        return value
    low, high = metric.interval
    return f"{value} [{low:.4f}, {high:.4f}]"


def own_parameters(manifest: TaskManifest) -> int:
    """Parameters that the version owns, its head included."""
    return manifest.parameter_counts.branch + manifest.parameter_counts.head


def saved_share(manifest: TaskManifest) -> float | None:
    """Share of a dedicated model's parameters that the version does without.

    None for versions that do not record the size of their backbone.
    """
    backbone = manifest.backbone.num_parameters
    if backbone is None:
        return None
    return 1.0 - own_parameters(manifest) / (backbone + manifest.parameter_counts.head)


def stored_bytes(manifest: TaskManifest) -> int:
    """Bytes of all blobs."""
    return sum(blob.size_bytes for blob in manifest.blobs)


def long_text(manifest: TaskManifest) -> str:
    """What becomes of an input that is longer than the longest that is read at once."""
    match manifest.reads_long:
        case OnLong.WINDOWS:
            return "what is longer is read in overlapping windows"
        case OnLong.REFUSE:
            return "what is longer is refused"
        case OnLong.CUT:
            return "what is longer is cut"


def long_examples_text(manifest: TaskManifest) -> str | None:
    """How many examples did not fit, with a warning if they are many; None if nobody counted."""
    data = manifest.data
    if data is None or data.num_train_long is None or data.num_dev_long is None:
        return None
    told = (
        f"{data.num_train_long:,} of {data.num_train:,} train examples and "
        f"{data.num_dev_long:,} of {data.num_dev:,} dev examples "
        f"have more than {manifest.max_length} tokens"
    )
    share = max(data.num_train_long / data.num_train, data.num_dev_long / data.num_dev)
    if share <= LONG_SHARE_TO_WARN_OF or manifest.head.kind.reads_tokens:
        return f"{told}."
    return (
        f"{told}. Warning: that is {share:.1%} of one part, and training and scoring read only "
        "the beginning of those examples; a larger max_length reads more of them."
    )
