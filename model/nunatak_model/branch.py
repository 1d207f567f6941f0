"""The branch: the layers of one task version above its split depth, and its head.

On a device that groups tasks, a branch lies in slots in padded form: ranks, sizes and labels are
rounded up, so that tasks of many shapes share one page. The padding is zeros and changes no answer:
added ranks and added bottleneck units contribute nothing, and added labels are cut off. The padding
is made once, when a version is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from nunatak_contract.enums import HeadKind, Pooling
from nunatak_contract.errors import NunatakError
from nunatak_contract.heads import TANH_BLOCK
from nunatak_contract.methods import HeadOnly, Method
from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import mismatch_of
from nunatak_model.heads import Head, HeadSpec, head_from, head_shapes, initial_head, with_labels
from nunatak_model.layer import LayerOverride, OwnLayer
from nunatak_model.methods import maths_of
from nunatak_model.ops.grouped import ALIGNMENT_BYTES, Slot, SlotBanks, rounded_up
from nunatak_model.ops.int8 import SCALE, count_parameters, is_quantizable, quantized, scale_of
from nunatak_model.ops.linear import packed
from nunatak_model.ops.native import NO_TASK_KERNELS, by_columns
from nunatak_model.weights import EmbeddingWeights, Shapes, embeddings_from

HEAD_PREFIX = "head."
Layers = Mapping[int, LayerOverride]
"""The override of each layer from the split depth up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSpec:
    """The method and the head of a branch."""

    method: Method
    head: HeadSpec

    def split_depth(self, config: BackboneConfig) -> int | None:
        return maths_of(self.method).split_depth(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSlots:
    """The slots of a branch, on a device whose kernels read many tasks' parameters at once."""

    layers: Slot[Layers] | None
    """None: a head alone."""
    head: Slot[Head]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """One task version, ready to run. Branches are compared by identity."""

    spec: BranchSpec
    split_depth: int | None
    parameters: Mapping[str, Tensor]
    embeddings: EmbeddingWeights | None
    layers: Layers
    head: Head
    head_parameters: int
    branch_parameters: int
    """Both numbers without padding."""
    slots: BranchSlots | None = None
    """The parameters are then views of the slots, padded to their shapes."""

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.parameters.values())

    def num_frozen_layers_read(self, config: BackboneConfig) -> int | None:
        """Number of lowest backbone layers in use; None without the embeddings."""
        if self.split_depth is None:
            return None
        # Additions to a frozen layer leave the layer in use.
        own = [index for index, layer in self.layers.items() if isinstance(layer, OwnLayer)]
        return min(own, default=config.num_layers)


def parameter_shapes(spec: BranchSpec, config: BackboneConfig) -> Shapes:
    """The exact set of tensors; `invalid_method` unless the method fits the backbone."""
    maths = maths_of(spec.method)
    maths.check(config)
    return {**maths.parameter_shapes(config), **head_shapes(spec.head, config)}


def initial_parameters(
    spec: BranchSpec, backbone: Backbone, *, generator: torch.Generator
) -> dict[str, Tensor]:
    """Fresh float32 tensors to train; `invalid_method` unless the method fits the backbone."""
    maths = maths_of(spec.method)
    maths.check(backbone.config)
    return {
        **maths.initial_parameters(backbone, generator),
        **initial_head(spec.head, backbone, generator),
    }


def stored_parameters(
    spec: BranchSpec, parameters: Mapping[str, Tensor], backbone: Backbone
) -> dict[str, Tensor]:
    """As versions store them: own layers on a quantized backbone in 8-bit integers."""
    has_own_layers = maths_of(spec.method).has_own_layers
    return quantized(parameters) if has_own_layers and backbone.is_quantized else dict(parameters)


def build_branch(
    spec: BranchSpec, config: BackboneConfig, parameters: Mapping[str, Tensor]
) -> Branch:
    """Arrange named tensors as a branch. The branch shares the memory of the tensors.

    Own words and the linear maps of own layers may be 8-bit integers (see `stored_parameters`).

    Raises:
        NunatakError: `invalid_method`; `parameter_mismatch`, the tensors do not match
            `parameter_shapes` in one floating-point dtype; `non_finite_parameter`.
    """
    shapes = parameter_shapes(spec, config)
    if maths_of(spec.method).has_own_layers:
        integers = [name for name, it in parameters.items() if it.dtype is torch.int8]
        shapes |= {
            scale_of(name): shapes[name][:1]
            for name in integers
            if name in shapes and is_quantizable(name, shapes[name])
        }
    _check_parameters(parameters, shapes)
    return _arrange(spec, config, parameters)


def convert_branch(branch: Branch, backbone: Backbone) -> Branch:
    """The same branch in the number format, place and layout of its backbone, to be served.

    The branch was built from finite parameters, so only a conversion can make them infinite, which
    is `non_finite_parameter`.
    """
    if backbone.ops.banks is not None and branch.split_depth is not None:
        return _in_slots(branch, backbone, backbone.ops.banks)
    parameters = {
        # Quantized maps keep their formats.
        name: tensor.to(backbone.device, backbone.dtype)
        if tensor.is_floating_point() and not name.endswith(SCALE)
        else tensor.to(backbone.device)
        for name, tensor in branch.parameters.items()
    }
    # Unchanged tensors were checked when the branch was built.
    check_finite({name: it for name, it in parameters.items() if it is not branch.parameters[name]})
    # The native operators read narrow factors by columns. All other large maps are packed.
    columns = by_columns(parameters) if backbone.ops.tasks != NO_TASK_KERNELS else {}
    if backbone.is_packed:
        plain = {name: it for name, it in parameters.items() if name not in columns}
        parameters = packed(plain, backbone.ops.integers)
    parameters |= columns
    return _arrange(branch.spec, backbone.config, parameters)


def _in_slots(branch: Branch, backbone: Backbone, banks: SlotBanks) -> Branch:
    spec, config = branch.spec, backbone.config
    alignment = ALIGNMENT_BYTES // backbone.dtype.itemsize
    form = BranchSpec(
        method=maths_of(spec.method).padded(alignment), head=padded_head(spec.head, alignment)
    )
    layer_shapes = maths_of(form.method).parameter_shapes(config)
    head = head_shapes(form.head, config)
    parameters = padded_parameters(
        spec.method, branch.parameters, {**layer_shapes, **head}, dtype=backbone.dtype
    )
    # Checked on the host, because a check on the device would wait for the device.
    check_finite(parameters)
    slots = BranchSlots(
        layers=banks.take(form.method, layer_shapes, partial(_layers, form, config))
        if layer_shapes
        else None,
        head=banks.take(form.head, head, partial(head_from, form.head, config)),
    )
    written = dict[str, Tensor]()
    for slot in (slots.layers, slots.head):
        if slot is not None:
            slot.write(parameters)
            written |= slot.parameters()
    arranged = _arrange(form, config, written)
    return replace(
        arranged,
        spec=spec,
        head=with_labels(arranged.head, spec.head.num_labels),
        head_parameters=branch.head_parameters,
        branch_parameters=branch.branch_parameters,
        slots=slots,
    )


def _arrange(spec: BranchSpec, config: BackboneConfig, parameters: Mapping[str, Tensor]) -> Branch:
    split_depth = spec.split_depth(config)
    of_head = count_parameters(
        {name: it for name, it in parameters.items() if name.startswith(HEAD_PREFIX)}
    )
    return Branch(
        spec=spec,
        split_depth=split_depth,
        parameters=dict(parameters),
        embeddings=embeddings_from(parameters) if split_depth is None else None,
        layers=_layers(spec, config, parameters),
        head=head_from(spec.head, config, parameters),
        head_parameters=of_head,
        branch_parameters=count_parameters(parameters) - of_head,
    )


def _layers(spec: BranchSpec, config: BackboneConfig, parameters: Mapping[str, Tensor]) -> Layers:
    maths = maths_of(spec.method)
    return {
        index: maths.layer(index, parameters)
        for index in range(spec.split_depth(config) or 0, config.num_layers)
    }


def _check_parameters(parameters: Mapping[str, Tensor], shapes: Shapes) -> None:
    scales = {name for name in shapes if name.endswith(SCALE)}
    integers = {name for name in shapes if scale_of(name) in scales}
    dtypes = {it.dtype for name, it in parameters.items() if name not in scales | integers}
    expected = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
    wrong = list[str]()
    for name in parameters.keys() & shapes.keys():
        tensor, dtype = parameters[name], torch.float32 if name in scales else expected
        is_number = name in integers or (tensor.dtype is dtype and tensor.is_floating_point())
        if not is_number or tuple(tensor.shape) != shapes[name]:
            wrong.append(
                f"{name} is {tensor.dtype} {list(tensor.shape)}, expected {dtype} "
                f"{list(shapes[name])}"
            )
    missing, unused = shapes.keys() - parameters.keys(), parameters.keys() - shapes.keys()
    if missing or unused or wrong:
        found = {
            "missing": sorted(missing),
            "unused": sorted(unused),
            "of another shape or dtype": sorted(wrong),
        }
        raise NunatakError("parameter_mismatch", found=mismatch_of(found))
    check_finite(parameters)


def check_finite(parameters: Mapping[str, Tensor]) -> None:
    """Raise `non_finite_parameter` for a parameter with NaN or infinity."""
    for name, tensor in parameters.items():
        # A finite sum proves every entry finite, and costs far less than a check of each entry. If
        # the sum overflows, the exact check decides.
        if not torch.isfinite(tensor.detach().sum()) and not torch.isfinite(tensor).all():
            raise NunatakError("non_finite_parameter", name=name)


def padded_head(head: HeadSpec, alignment: int) -> HeadSpec:
    """Labels rounded up to a multiple of `alignment`; all kinds of head share a form."""
    kind = HeadKind.TOKEN_CLASSIFICATION
    if isinstance(head.pooling, Pooling):
        kind = HeadKind.SEQUENCE_CLASSIFICATION
    return replace(head, kind=kind, num_labels=rounded_up(head.num_labels, alignment))


def padded_parameters(
    method: Method, parameters: Mapping[str, Tensor], shapes: Shapes, *, dtype: torch.dtype
) -> dict[str, Tensor]:
    maths = maths_of(method)
    return {
        name: _filled(maths.in_slot(name, parameters[name]).to(dtype), shape)
        for name, shape in shapes.items()
    }


def _filled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) == shape:
        return tensor
    filled = tensor.new_zeros(shape)
    filled[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return filled


def embedding_branch(backbone: Backbone) -> Branch:
    """A branch whose logits are the pooled vector of the last layer, [hidden width].

    The branch splits at the top, so its rows are trunk rows to the end. Its head is the
    checkpoint's pooling, without an output layer. The vectors are not normalised.
    """
    config = backbone.config
    return Branch(
        spec=BranchSpec(
            method=HeadOnly(),
            head=HeadSpec(num_labels=config.hidden_width, pooling=backbone.pooling),
        ),
        split_depth=config.num_layers,
        parameters={},
        embeddings=None,
        layers={},
        head=Head(
            pooling=backbone.pooling,
            padding_id=None,
            dense=None,
            activation=TANH_BLOCK.activation,
            norm=None,
            norm_epsilon=config.layer_norm_epsilon,
            output=None,
        ),
        head_parameters=0,
        branch_parameters=0,
    )
