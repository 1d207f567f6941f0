"""Heads as the model's values (`nunatak_model`) and as records (`nunatak_contract`), both ways."""

from collections.abc import Mapping

from nunatak_contract.enums import HeadKind, ProblemType, RankingScore
from nunatak_contract.heads import HeadRecord
from nunatak_contract.methods import Method
from nunatak_model import BranchSpec, HeadSpec

SHARED = ("kind", "pooling", "dense", "block", "bias", "padding_id")
"""Fields of both forms."""


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

    A sequence classification without `problem_type` gives one label. `score` belongs to ranking,
    `thresholds` to several labels (absent: 0.5). `default_label` means that nothing was found.
    """
    if problem_type is None and spec.kind is HeadKind.SEQUENCE_CLASSIFICATION:
        problem_type = ProblemType.SINGLE_LABEL
    return HeadRecord(
        problem_type=problem_type,
        labels=labels,
        default_label=default_label,
        thresholds=dict(thresholds or {}),
        score=score,
        **{name: getattr(spec, name) for name in SHARED},
    )


def branch_spec(head: HeadRecord, method: Method) -> BranchSpec:
    shared = {name: getattr(head, name) for name in SHARED}
    return BranchSpec(method=method, head=HeadSpec(num_labels=head.num_outputs, **shared))
