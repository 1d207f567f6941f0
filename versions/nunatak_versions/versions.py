"""Task versions: parameters become a manifest and blobs, and these a branch that may be served.

Loading fails closed: a version that does not fit exactly is refused before any caller sees it.

`check_effect` refuses a branch that changes nothing. An adapter with renamed keys, an adapter that
was never trained, or copied layers would load without an error and answer like the bare backbone.
No later check would notice.

The parity probe: a few inputs with their logits, recorded at publication, checked at loading.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import cast

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from nunatak_contract.enums import HeadKind, OnLong, ProblemType, RankingScore, Reads, TensorDtype
from nunatak_contract.errors import NunatakError
from nunatak_contract.evidence import (
    CalibrationRecord,
    ConfusionRecord,
    DataRecord,
    MetricRecord,
    ProbeLogits,
    ProbeRecord,
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
    Branch,
    BranchSpec,
    HeadSpec,
    Row,
    TextInput,
    TrunkStates,
    build_branch,
    convert_branch,
    floating_parameters,
    forward,
    quantized_digest,
    stored_parameters,
    tensors_from_bytes,
    tensors_to_bytes,
)

PARAMETERS_ROLE = "parameters"
SHARED = ("kind", "pooling", "dense", "block", "bias", "padding_id")
"""Fields that `HeadSpec` of the model and `HeadRecord` of the contract have in common."""
RELATIVE_TOLERANCE: Mapping[torch.dtype, float] = {
    # Half-precision formats keep 8 or 11 significant bits per value. A dozen layers turn this
    # rounding into a few percent of the largest logit (measured). A wrong label order, layer or
    # backbone is off by the size of the logits themselves.
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
    # Kernels of other devices sum in another order.
    torch.float32: 1e-5,
}
INT8_TOLERANCE = 0.2
"""Tolerance on a quantized backbone. Another CPU or kernel may round a last bit differently, which
can move a number to the next integer in every layer above. Of 2,672 texts of three tasks, 169 moved
by more than 2 %, and the farthest by 13 %."""


def branch_spec(head: HeadRecord, method: Method) -> BranchSpec:
    shared = {name: getattr(head, name) for name in SHARED}
    return BranchSpec(method=method, head=HeadSpec(num_labels=head.num_outputs, **shared))


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


def check_effect(reference: str, branch: Branch, backbone: Backbone) -> None:
    """Refuse a branch whose method changes layers but whose parameters change none.

    The check reads the parameters up to the first difference.
    """
    if not branch.layers:
        return
    owned = floating_parameters(branch.parameters)
    if not any(layer.has_additions for layer in branch.layers.values()) and not any(
        backbone.equals(name, tensor) is False for name, tensor in owned
    ):
        raise NunatakError("no_effect", reference=reference, method=branch.spec.method.kind.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    manifest: TaskManifest
    branch: Branch
    num_bytes: int


def load_task(
    manifest: TaskManifest,
    data: bytes,
    backbone: Backbone,
    *,
    is_validated: bool = False,
    trunk: TrunkStates | None = None,
    pause: Callable[[], None] = lambda: None,
) -> LoadedTask:
    """Build a task version on `backbone` from its parameters, and prove its answers by the probe.

    The answers depend on manifest, parameters and backbone alone. `is_validated` says that this
    process has loaded the same three before; then only the checks of the bytes run again. A version
    in slots is proven every time, because other versions used the slots before.

    `trunk` may hold trunk states of the probe's inputs from earlier loads. `pause` is called
    between the parts of the work, for a caller that must not keep a core busy for long.

    Raises:
        NunatakError: `backbone_mismatch`, the version was trained on another backbone or tokenizer.
        NunatakError: `unservable_task`, manifest, parameters and backbone contradict each other.
        NunatakError: `no_effect`, the parameters change nothing.
        NunatakError: `probe_failed`, the version does not reproduce its recorded logits.
        NunatakError: the tensors do not fit method and head, or are not finite.
    """
    _check_backbone(manifest, backbone)
    spec = branch_spec(manifest.head, manifest.method)
    parameters = tensors_from_bytes(data)
    expected: torch.dtype = getattr(torch, manifest.dtype)
    # Own layers in integers, and their scales.
    others = {torch.int8, torch.float32} if backbone.is_quantized else set[torch.dtype]()
    for name, tensor in parameters.items():
        if tensor.dtype is not expected and tensor.dtype not in others:
            found = f"parameter {name!r} is {tensor.dtype}, its manifest says {manifest.dtype}"
            raise _unservable(manifest, found)
    stored = build_branch(spec, backbone.config, parameters)
    if stored.split_depth != manifest.split_depth:
        raise _unservable(
            manifest,
            f"its method splits at layer {stored.split_depth}, its manifest says "
            f"{manifest.split_depth}",
        )
    needed = stored.num_frozen_layers_read(backbone.config) or 0
    if needed > len(backbone.layers):
        raise NunatakError("layer_not_held", index=needed - 1)
    pause()
    branch = convert_branch(stored, backbone)
    pause()
    if not is_validated or branch.slots is not None:
        check_effect(manifest.reference, stored, backbone)
        run_probe(manifest, branch, backbone, trunk=trunk)
    return LoadedTask(manifest=manifest, branch=branch, num_bytes=branch.num_bytes)


def _check_backbone(manifest: TaskManifest, backbone: Backbone) -> None:
    if manifest.backbone.digest != backbone.digest:
        raise backbone_mismatch(manifest, [backbone])
    if manifest.tokenizer_digest != backbone.tokenizer.digest:
        wanted, served = manifest.tokenizer_digest[:12], backbone.tokenizer.digest[:12]
        raise _mismatch(manifest, "tokenizer", wanted, served)
    if manifest.max_length > backbone.config.max_tokens:
        most = f"its backbone at most {backbone.config.max_tokens}"
        raise _unservable(manifest, f"it reads up to {manifest.max_length} tokens, {most}")


def backbone_mismatch(manifest: TaskManifest, served: Iterable[Backbone]) -> NunatakError:
    wanted, *others = (f"{it.name} ({it.digest[:12]})" for it in (manifest.backbone, *served))
    return _mismatch(manifest, "backbone", wanted, ", ".join(others))


def _mismatch(manifest: TaskManifest, part: str, wanted: str, served: str) -> NunatakError:
    return NunatakError(
        "backbone_mismatch", reference=manifest.reference, part=part, wanted=wanted, served=served
    )


def _unservable(manifest: TaskManifest, reason: str) -> NunatakError:
    return NunatakError("unservable_task", reference=manifest.reference, reason=reason)


def record_probe(
    branch: Branch, backbone: Backbone, inputs: Sequence[TextInput], *, max_length: int
) -> ProbeRecord:
    logits = list[ProbeLogits]()
    # One input at a time: the probe records the logits of a row alone.
    for encoding in backbone.tokenizer.encode(inputs, max_length=max_length):
        with torch.inference_mode():
            (output,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
        found = output.cpu()
        logits.append(_floats(found) if found.dim() == 1 else tuple(map(_floats, found)))
    return ProbeRecord(inputs=tuple(inputs), logits=tuple(logits))


def run_probe(
    manifest: TaskManifest, branch: Branch, backbone: Backbone, *, trunk: TrunkStates | None = None
) -> None:
    """Check that a branch gives the recorded logits, with all inputs in one batch.

    `trunk` may hold trunk states from earlier probes, which do not depend on the branch.
    """
    probe = manifest.probe
    encodings = backbone.tokenizer.encode(probe.inputs, max_length=manifest.max_length)
    rows = [Row(encoding=encoding, branch=branch) for encoding in encodings]
    with torch.inference_mode():
        outputs = forward(backbone, rows, trunk=trunk)
    for number, (output, expected) in enumerate(zip(outputs, probe.logits, strict=True)):
        actual = output.cpu()
        problem = _difference(probe.tolerance, actual.new_tensor(expected), actual, backbone)
        if problem is not None:
            raise NunatakError(
                "probe_failed", reference=manifest.reference, number=number, reason=problem
            )


def probe_tolerance(recorded: float, expected: Sequence[float], backbone: Backbone) -> float:
    """Return the allowed difference of a logit; rounding grows with the largest one of the row."""
    scale = max(1.0, *(abs(logit) for logit in expected))
    relative = RELATIVE_TOLERANCE[backbone.dtype]
    if backbone.is_quantized:
        relative = max(relative, INT8_TOLERANCE)
    return max(recorded, relative * scale)


def _floats(logits: Tensor) -> tuple[float, ...]:
    return tuple(cast("list[float]", logits.tolist()))


def _difference(
    recorded: float, expected: Tensor, actual: Tensor, backbone: Backbone
) -> str | None:
    if expected.shape != actual.shape:
        return f"{_shape(actual)} logits, {_shape(expected)} were recorded"
    tolerance = probe_tolerance(recorded, _floats(expected.flatten()), backbone)
    error = (actual - expected).abs().max().item()
    # Every comparison with NaN is false; this form makes NaN fail.
    if not error <= tolerance:
        return f"logits differ by {error:.3g} from the recorded ones, {tolerance:.3g} is allowed"
    return None


def _shape(logits: Tensor) -> str:
    return " x ".join(map(str, logits.shape))


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
