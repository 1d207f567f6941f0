"""Heads as the model's values (`nunatak_model`) and as records (`nunatak_contract`), both ways."""

from collections.abc import Mapping

from nunatak_contract.enums import HeadKind, ProblemType, RankingScore
from nunatak_contract.heads import HeadRecord
from nunatak_contract.methods import Method
from nunatak_model import BranchSpec, HeadSpec


def head_record(
    spec: HeadSpec,
    labels: tuple[str, ...],
    problem_type: ProblemType | None = None,
    score: RankingScore = RankingScore.SIGMOID,
    *,
    default_label: str | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> HeadRecord:
    """Return the record of a head whose logits stand for `labels`, in this order.

    `problem_type` belongs to sequence classification; where absent, each text has one label.
    `score` belongs to ranking.
    `default_label` is the label that means that nothing was found.
    `thresholds` are the scores from which labels of a multi-label task apply; absent: 0.5.
    """
    if problem_type is None and spec.kind is HeadKind.SEQUENCE_CLASSIFICATION:
        problem_type = ProblemType.SINGLE_LABEL
    return HeadRecord(
        kind=spec.kind,
        problem_type=problem_type,
        labels=labels,
        pooling=spec.pooling,
        dense=spec.dense,
        block=spec.block,
        bias=spec.bias,
        padding_id=spec.padding_id,
        default_label=default_label,
        thresholds=dict(thresholds or {}),
        score=score,
    )


def branch_spec(head: HeadRecord, method: Method) -> BranchSpec:
    """Return the branch that the records of a manifest describe."""
    return BranchSpec(
        method=method,
        head=HeadSpec(
            kind=head.kind,
            num_labels=head.num_outputs,
            pooling=head.pooling,
            dense=head.dense,
            block=head.block,
            bias=head.bias,
            padding_id=head.padding_id,
        ),
    )
