"""Loading: a manifest and verified bytes become a task version that may be served.

Loading fails closed: a version that does not fit exactly is refused before any caller sees it.

`check_effect` refuses a branch that changes nothing. An adapter with renamed keys, an adapter that
was never trained, or copied layers would load without an error and answer like the bare backbone.
No later check would notice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import HeadRecord
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import Method
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    HeadSpec,
    TrunkStates,
    build_branch,
    convert_branch,
    floating_parameters,
    tensors_from_bytes,
)
from nunatak_versions.probing import run_probe

SHARED = ("kind", "pooling", "dense", "block", "bias", "padding_id")
"""Fields that `HeadSpec` of the model and `HeadRecord` of the contract have in common."""


def branch_spec(head: HeadRecord, method: Method) -> BranchSpec:
    shared = {name: getattr(head, name) for name in SHARED}
    return BranchSpec(method=method, head=HeadSpec(num_labels=head.num_outputs, **shared))


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
