"""Methods and heads as the model's values (`nunatak_model`) and as registry records, both ways."""

from nunatak_model import (
    Activation,
    AdaptedBlocks,
    AdapterInput,
    Bottleneck,
    BranchSpec,
    DenseBlock,
    Full,
    HeadKind,
    HeadNorm,
    HeadOnly,
    HeadSpec,
    Lora,
    LoraTarget,
    Method,
    Norms,
    Pooling,
    TopK,
)
from nunatak_registry import manifest as records
from nunatak_registry.manifest import (
    BottleneckRecord,
    DenseBlockRecord,
    FullRecord,
    HeadOnlyRecord,
    HeadRecord,
    LoraRecord,
    MethodRecord,
    TopKRecord,
)


def method_record(method: Method) -> MethodRecord:
    """Return the record of a method."""
    match method:
        case TopK():
            return TopKRecord(num_layers=method.num_layers)
        case HeadOnly():
            return HeadOnlyRecord()
        case Bottleneck():
            return BottleneckRecord(
                size=method.size,
                first_layer=method.first_layer,
                blocks=records.AdaptedBlocks(method.blocks.value),
                reads=records.AdapterInput(method.reads.value),
                activation=records.Activation(method.activation.value),
                norms=records.Norms(method.norms.value),
            )
        case Lora():
            return LoraRecord(
                rank=method.rank,
                alpha=method.alpha,
                targets=tuple(records.LoraTarget(target.value) for target in method.targets),
                first_layer=method.first_layer,
            )
        case Full():
            return FullRecord()


def method_of(record: MethodRecord) -> Method:
    """Return the method that a record describes."""
    match record:
        case TopKRecord():
            return TopK(num_layers=record.num_layers)
        case HeadOnlyRecord():
            return HeadOnly()
        case BottleneckRecord():
            return Bottleneck(
                size=record.size,
                first_layer=record.first_layer,
                blocks=AdaptedBlocks(record.blocks.value),
                reads=AdapterInput(record.reads.value),
                activation=Activation(record.activation.value),
                norms=Norms(record.norms.value),
            )
        case LoraRecord():
            return Lora(
                rank=record.rank,
                alpha=record.alpha,
                targets=tuple(LoraTarget(target.value) for target in record.targets),
                first_layer=record.first_layer,
            )
        case FullRecord():
            return Full()


def head_record(
    spec: HeadSpec,
    labels: tuple[str, ...],
    problem_type: records.ProblemType | None = None,
    score: records.RankingScore = records.RankingScore.SIGMOID,
    *,
    default_label: str | None = None,
) -> HeadRecord:
    """Return the record of a head whose logits stand for `labels`, in this order.

    `problem_type` belongs to sequence classification; where absent, each text has one label.
    `score` belongs to ranking.
    `default_label` is the one that means that nothing was found.
    """
    if problem_type is None and spec.kind is HeadKind.SEQUENCE_CLASSIFICATION:
        problem_type = records.ProblemType.SINGLE_LABEL
    return HeadRecord(
        kind=records.HeadKind(spec.kind.value),
        problem_type=problem_type,
        labels=labels,
        pooling=None if spec.pooling is None else records.Pooling(spec.pooling.value),
        dense=spec.dense,
        block=DenseBlockRecord(
            activation=records.Activation(spec.block.activation.value),
            bias=spec.block.bias,
            norm=records.HeadNorm(spec.block.norm.value),
        ),
        default_label=default_label,
        score=score,
    )


def branch_spec(head: HeadRecord, method: MethodRecord) -> BranchSpec:
    """Return the branch that the records of a manifest describe."""
    return BranchSpec(
        method=method_of(method),
        head=HeadSpec(
            kind=HeadKind(head.kind.value),
            num_labels=head.num_outputs,
            pooling=None if head.pooling is None else Pooling(head.pooling.value),
            dense=head.dense,
            block=DenseBlock(
                activation=Activation(head.block.activation.value),
                bias=head.block.bias,
                norm=HeadNorm(head.block.norm.value),
            ),
        ),
    )
