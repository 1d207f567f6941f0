"""Loading: a manifest and verified bytes become a task version that may be served.

Loading fails closed: it refuses whatever does not fit exactly, before any caller can see it.

`check_effect` refuses a branch that changes nothing. An adapter with renamed keys, an adapter that
was never trained, or copied layers would load without an error and answer like the bare backbone.
No later check would notice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nunatak_artifact.errors import BackboneMismatchError, NoEffectError, UnservableTaskError
from nunatak_artifact.probing import run_probe
from nunatak_artifact.records import branch_spec
from nunatak_contract.enums import TensorDtype
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import HeadOnly
from nunatak_model import (
    Backbone,
    Branch,
    LayerNotHeldError,
    TrunkStates,
    build_branch,
    convert_branch,
    tensors_from_bytes,
)
from nunatak_model.layer import (
    Adapter,
    BottleneckLayer,
    LayerOverride,
    LoraLayer,
    LoraUpdate,
)


def check_effect(reference: str, branch: Branch, backbone: Backbone) -> None:
    """Refuse a branch that claims to change layers and changes none.

    Costs one pass over the parameters up to the first that differs.

    Raises:
        NoEffectError: every layer computes exactly what the backbone's layer does.
    """
    method = branch.spec.method
    if isinstance(method, HeadOnly):
        return
    if not _owns_other_values(branch, backbone) and not any(map(_adds, branch.layers.values())):
        raise NoEffectError(reference, method.kind.value)


def _owns_other_values(branch: Branch, backbone: Backbone) -> bool:
    return any(backbone.equals(name, tensor) is False for name, tensor in branch.parameters.items())


def _adds(layer: LayerOverride) -> bool:
    match layer:
        case LoraLayer():
            return any(map(_updates, layer.updates.values()))
        case BottleneckLayer():
            adapters = (layer.attention_adapter, layer.feedforward_adapter)
            return any(_answers(adapter) for adapter in adapters if adapter is not None)
        case _:
            return False


def _updates(update: LoraUpdate) -> bool:
    return bool(update.up.any()) and bool(update.down.any())


def _answers(adapter: Adapter) -> bool:
    return any(bool(it.any()) for it in (adapter.up.weight, adapter.up.bias) if it is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """One immutable task version in memory."""

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
    """Build a task version on `backbone` from its parameters, and prove that it answers right.

    The answers depend on manifest, parameters and backbone alone. `is_validated` says that the same
    three were loaded in this process before; then only the checks of the bytes run again. A version
    in slots is proven every time, because other versions used the slots before.

    `trunk` may hold trunk states of the probe's inputs from earlier loads. `pause` is called
    between the parts of the work, for a caller that must not keep a core busy for long.

    Raises:
        BackboneMismatchError: it was trained on another backbone or tokenizer.
        UnservableTaskError: manifest, parameters and backbone contradict each other.
        NoEffectError: its parameters change nothing.
        ProbeFailedError: the version does not reproduce its recorded logits.
        ModelError: the tensors do not fit method and head, or are not finite.
    """
    _check_backbone(manifest, backbone)
    spec = branch_spec(manifest.head, manifest.method)
    parameters = tensors_from_bytes(data)
    _check_dtype(manifest, parameters)
    stored = build_branch(spec, backbone.config, parameters)
    if stored.split_depth != manifest.split_depth:
        raise UnservableTaskError(
            manifest.reference,
            f"its method splits at layer {stored.split_depth}, "
            f"its manifest says {manifest.split_depth}",
        )
    _check_layers(stored, backbone)
    pause()
    branch = convert_branch(stored, backbone)
    pause()
    if not is_validated or branch.slots is not None:
        check_effect(manifest.reference, stored, backbone)
        run_probe(manifest, branch, backbone, trunk=trunk)
    return LoadedTask(manifest=manifest, branch=branch, num_bytes=branch.num_bytes)


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


def _check_layers(branch: Branch, backbone: Backbone) -> None:
    needed = branch.num_frozen_layers_read(backbone.config) or 0
    if needed > len(backbone.layers):
        raise LayerNotHeldError(needed - 1)


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
