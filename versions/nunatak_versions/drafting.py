"""Drafting: trained parameters become a manifest and blobs that the registry can publish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from pydantic import BaseModel, ValidationError
from torch import Tensor

from nunatak_contract.enums import HeadKind, OnLong, ProblemType, RankingScore, Reads, TensorDtype
from nunatak_contract.errors import NunatakError
from nunatak_contract.evidence import (
    CalibrationRecord,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    RecipeRecord,
    TeacherRecord,
)
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import (
    BackboneRecord,
    BlobRecord,
    ParameterCounts,
    TaskDraft,
    TaskManifest,
)
from nunatak_contract.methods import Method
from nunatak_contract.record import problems_of
from nunatak_model import (
    Backbone,
    HeadSpec,
    TextInput,
    build_branch,
    quantized_digest,
    stored_parameters,
    tensors_from_bytes,
    tensors_to_bytes,
)
from nunatak_versions.loading import (
    SHARED,
    backbone_mismatch,
    branch_spec,
    check_effect,
    record_probe,
)

PARAMETERS_ROLE = "parameters"


class Provenance(BaseModel, frozen=True):
    created_at: datetime
    data: DataRecord | None = None
    recipe: RecipeRecord | None = None
    metrics: tuple[MetricRecord, ...] = ()
    test_metrics: tuple[MetricRecord, ...] = ()
    confusion: ConfusionRecord | None = None
    calibration: CalibrationRecord | None = None
    teacher: TeacherRecord | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDraft:
    """A manifest without a version, and its blobs: the arguments of `Registry.publish`."""

    manifest: TaskDraft
    blobs: Mapping[str, bytes]


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


def draft_task(  # noqa: PLR0913 - a version has this many parts
    task: str,
    *,
    method: Method,
    head: HeadRecord,
    reads: Reads | None = None,
    on_long: OnLong | None = None,
    parameters: Mapping[str, Tensor],
    backbone: Backbone,
    max_length: int,
    probe_inputs: Sequence[TextInput],
    provenance: Provenance,
) -> VersionDraft:
    """Describe and serialise a task version of float32 parameters.

    The parameter counts and the probe are computed from the serialised bytes, which a server reads.
    Raises `unpublishable` if no manifest can hold the parts.
    """
    data = tensors_to_bytes(parameters)
    branch = build_branch(branch_spec(head, method), backbone.config, tensors_from_bytes(data))
    check_effect(task, branch, backbone)
    try:
        manifest = TaskDraft(
            task=task,
            head=head,
            method=method,
            split_depth=branch.split_depth,
            backbone=BackboneRecord(
                name=backbone.name,
                digest=backbone.digest,
                num_layers=backbone.config.num_layers,
                hidden_width=backbone.config.hidden_width,
                num_parameters=backbone.num_parameters,
            ),
            tokenizer_digest=backbone.tokenizer.digest,
            max_length=max_length,
            reads=reads,
            on_long=on_long,
            dtype=TensorDtype.FLOAT32,
            parameter_counts=ParameterCounts(
                branch=branch.branch_parameters, head=branch.head_parameters
            ),
            blobs=(
                BlobRecord(
                    role=PARAMETERS_ROLE, sha256=sha256(data).hexdigest(), size_bytes=len(data)
                ),
            ),
            probe=record_probe(branch, backbone, probe_inputs, max_length=max_length),
            **dict(provenance),
        )
    except ValidationError as error:
        place, problem = problems_of(error)[0]
        raise NunatakError(
            "unpublishable", place=place or "its settings", problem=problem
        ) from error
    return VersionDraft(manifest=manifest, blobs={PARAMETERS_ROLE: data})


def draft_quantized(manifest: TaskManifest, data: bytes, backbone: Backbone) -> VersionDraft:
    """The same task on the quantized form of its backbone, without the scores of the original."""
    if backbone.digest != quantized_digest(manifest.backbone.digest):
        raise backbone_mismatch(manifest, [backbone])
    spec = branch_spec(manifest.head, manifest.method)
    floats = {name: it.float() for name, it in tensors_from_bytes(data).items()}
    return draft_task(
        manifest.task,
        method=manifest.method,
        head=manifest.head,
        reads=manifest.reads,
        on_long=manifest.on_long,
        parameters=stored_parameters(spec, floats, backbone),
        backbone=backbone,
        max_length=manifest.max_length,
        probe_inputs=manifest.probe.inputs,
        provenance=Provenance(
            created_at=datetime.now(UTC),
            data=manifest.data,
            recipe=manifest.recipe,
            note=manifest.note,
        ),
    )
