"""Loading: from a manifest and verified bytes to a task version that may be served.

Fails closed: whatever does not fit exactly is refused here, before any caller can see it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from nunatak_model import (
    Backbone,
    Bottleneck,
    Branch,
    BranchSpec,
    Full,
    HeadKind,
    HeadOnly,
    HeadSpec,
    Lora,
    LoraTarget,
    Method,
    Pooling,
    Row,
    TopK,
    build_branch,
    convert_branch,
    forward,
    tensors_from_bytes,
)
from nunatak_registry import (
    BottleneckRecord,
    FullRecord,
    HeadOnlyRecord,
    LoraRecord,
    MethodRecord,
    TaskManifest,
    TensorDtype,
    TopKRecord,
)
from nunatak_server.compute import logits_to_floats
from nunatak_server.errors import BackboneMismatchError, ProbeFailedError, UnservableTaskError

PARAMETERS_ROLE = "parameters"

RELATIVE_PROBE_TOLERANCE: Mapping[torch.dtype, float] = {
    # On the default backbone bfloat16 moves logits by up to 2.3 % of the largest one and float16 by
    # 0.2 %, over all methods; deeper backbones round more often. A wrong label order, layer or
    # backbone is off by the size of the logits themselves.
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """One immutable task version in memory."""

    manifest: TaskManifest
    branch: Branch
    num_bytes: int

    @property
    def key(self) -> tuple[str, int]:
        """Task and version: what identifies it among the resident ones."""
        return self.manifest.task, self.manifest.version


def load_task(manifest: TaskManifest, data: bytes, backbone: Backbone) -> LoadedTask:
    """Build a task version on `backbone` from its parameters, and prove that it answers right.

    Raises:
        BackboneMismatchError: it was trained on another backbone or tokenizer.
        UnservableTaskError: manifest, parameters and backbone contradict each other.
        ProbeFailedError: it does not reproduce its recorded logits.
        ModelError: the tensors are not those that method and head need, or not finite.
    """
    _check_backbone(manifest, backbone)
    spec = branch_spec(manifest)
    parameters = tensors_from_bytes(data)
    _check_dtype(manifest, parameters)
    stored = build_branch(spec, backbone.config, parameters)
    if stored.split_depth != manifest.split_depth:
        raise UnservableTaskError(
            manifest.reference,
            f"its method splits at layer {stored.split_depth}, "
            f"its manifest says {manifest.split_depth}",
        )
    branch = convert_branch(stored, backbone.config, dtype=backbone.dtype, device=backbone.device)
    _run_probe(manifest, branch, backbone)
    return LoadedTask(manifest=manifest, branch=branch, num_bytes=branch.num_bytes)


def branch_spec(manifest: TaskManifest) -> BranchSpec:
    """Return what the manifest says of the branch, in the terms of the model.

    Raises:
        UnservableTaskError: it names parts that this version of the model does not have.
    """
    head = manifest.head
    try:
        method = _method(manifest.method)
    except ValueError as error:
        raise UnservableTaskError(manifest.reference, str(error)) from error
    return BranchSpec(
        method=method,
        head=HeadSpec(
            kind=HeadKind(head.kind.value),
            num_labels=len(head.labels),
            pooling=Pooling(head.pooling.value),
            dense=head.dense,
        ),
    )


def _method(record: MethodRecord) -> Method:
    match record:
        case TopKRecord():
            return TopK(num_layers=record.num_layers)
        case HeadOnlyRecord():
            return HeadOnly()
        case BottleneckRecord():
            return Bottleneck(size=record.size, first_layer=record.first_layer)
        case LoraRecord():
            return Lora(
                rank=record.rank,
                alpha=record.alpha,
                targets=tuple(LoraTarget(target) for target in record.targets),
                first_layer=record.first_layer,
            )
        case FullRecord():
            return Full()
        case _:
            assert_never(record)


def _check_backbone(manifest: TaskManifest, backbone: Backbone) -> None:
    reference = manifest.reference
    if manifest.backbone.digest != backbone.digest:
        wanted = f"{manifest.backbone.name} ({manifest.backbone.digest[:12]})"
        served = f"{backbone.name} ({backbone.digest[:12]})"
        raise BackboneMismatchError(reference, "backbone", wanted, served)
    if manifest.tokenizer_digest != backbone.tokenizer.digest:
        wanted, served = manifest.tokenizer_digest[:12], backbone.tokenizer.digest[:12]
        raise BackboneMismatchError(reference, "tokenizer", wanted, served)
    if manifest.max_length > backbone.config.max_tokens:
        raise UnservableTaskError(
            reference,
            f"it reads up to {manifest.max_length} tokens, "
            f"its backbone at most {backbone.config.max_tokens}",
        )


def _check_dtype(manifest: TaskManifest, parameters: Mapping[str, Tensor]) -> None:
    expected = _torch_dtype(manifest.dtype)
    for name, tensor in parameters.items():
        if tensor.dtype is not expected:
            raise UnservableTaskError(
                manifest.reference,
                f"parameter {name!r} is {tensor.dtype}, its manifest says {manifest.dtype}",
            )


def _torch_dtype(dtype: TensorDtype) -> torch.dtype:
    match dtype:
        case TensorDtype.FLOAT32:
            return torch.float32
        case TensorDtype.FLOAT16:
            return torch.float16
        case TensorDtype.BFLOAT16:
            return torch.bfloat16


def _run_probe(manifest: TaskManifest, branch: Branch, backbone: Backbone) -> None:
    probe = manifest.probe
    encodings = backbone.tokenizer.encode(probe.inputs, max_length=manifest.max_length)
    for position, (encoding, expected) in enumerate(zip(encodings, probe.logits, strict=True)):
        with torch.inference_mode():
            (output,) = forward(backbone, [Row(encoding=encoding, branch=branch)])
        _compare(manifest, position, expected, logits_to_floats(output), backbone.dtype)


def _compare(
    manifest: TaskManifest,
    position: int,
    expected: tuple[float, ...],
    actual: list[float],
    dtype: torch.dtype,
) -> None:
    if len(expected) != len(actual):
        raise ProbeFailedError(
            manifest.reference,
            position,
            f"{len(actual)} logits, {len(expected)} were recorded",
        )
    tolerance = probe_tolerance(manifest.probe.tolerance, expected, dtype)
    error = max(abs(a - b) for a, b in zip(expected, actual, strict=True))
    # Written so that NaN, which compares false with everything, fails.
    if not error <= tolerance:
        raise ProbeFailedError(
            manifest.reference,
            position,
            f"logits differ by {error:.3g} from the recorded ones, {tolerance:.3g} is allowed",
        )


def probe_tolerance(recorded: float, expected: tuple[float, ...], dtype: torch.dtype) -> float:
    """Return the largest allowed difference of a logit when serving in `dtype`.

    In float32 it is what the publisher recorded; half-precision formats add their own rounding,
    in proportion to the largest recorded logit.
    """
    scale = max(1.0, *(abs(logit) for logit in expected))
    return max(recorded, RELATIVE_PROBE_TOLERANCE.get(dtype, 0.0) * scale)
