"""The branch: what one task version runs above its split depth, and its head."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nunatak_model.backbone import Backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import NonFiniteParameterError, ParameterMismatchError
from nunatak_model.heads import Head, HeadSpec, head_from, head_shapes, initial_head
from nunatak_model.methods import Full, Method
from nunatak_model.overrides import LayerOverride
from nunatak_model.weights import EmbeddingWeights, Shapes, embeddings_from

HEAD_PREFIX = "head."


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSpec:
    """What a branch is made of, without its parameters."""

    method: Method
    head: HeadSpec

    def split_depth(self, config: BackboneConfig) -> int | None:
        """Index of the first layer that differs from the backbone; None for a full copy."""
        return self.method.split_depth(config)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """One task version, ready to run; two branches are the same only if they are one object."""

    spec: BranchSpec
    split_depth: int | None
    parameters: Mapping[str, Tensor]
    embeddings: EmbeddingWeights | None
    layers: Mapping[int, LayerOverride]
    """What runs at each layer from the split depth up."""
    head: Head

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(tensor.nbytes for tensor in self.parameters.values())

    @property
    def head_parameters(self) -> int:
        """Number of parameters of the head."""
        return sum(t.numel() for name, t in self.parameters.items() if name.startswith(HEAD_PREFIX))

    @property
    def branch_parameters(self) -> int:
        """Number of parameters of layers, adapters and embeddings."""
        return sum(t.numel() for t in self.parameters.values()) - self.head_parameters


def parameter_shapes(spec: BranchSpec, config: BackboneConfig) -> Shapes:
    """The exact set of tensors of a task version.

    Raises:
        InvalidMethodError: the method does not fit the backbone.
    """
    spec.method.check(config)
    return {**spec.method.parameter_shapes(config), **head_shapes(spec.head, config)}


def initial_parameters(
    spec: BranchSpec, backbone: Backbone, *, generator: torch.Generator
) -> dict[str, Tensor]:
    """Fresh float32 tensors to train; they share no memory with the backbone.

    Raises:
        InvalidMethodError: the method does not fit the backbone.
    """
    spec.method.check(backbone.config)
    return {
        **spec.method.initial_parameters(backbone, generator),
        **initial_head(spec.head, backbone, generator),
    }


def build_branch(
    spec: BranchSpec, config: BackboneConfig, parameters: Mapping[str, Tensor]
) -> Branch:
    """Arrange named tensors as a branch; the tensors are referenced, not copied.

    Raises:
        InvalidMethodError: the method does not fit the backbone.
        ParameterMismatchError: the tensors are not exactly those of `parameter_shapes`, or not
            all of one floating-point dtype.
        NonFiniteParameterError: a tensor holds NaN or infinity.
    """
    _check_parameters(parameters, parameter_shapes(spec, config))
    split_depth = spec.split_depth(config)
    return Branch(
        spec=spec,
        split_depth=split_depth,
        parameters=dict(parameters),
        embeddings=embeddings_from(parameters) if isinstance(spec.method, Full) else None,
        layers={
            index: spec.method.layer(index, parameters)
            for index in range(split_depth or 0, config.num_layers)
        },
        head=head_from(spec.head, parameters),
    )


def convert_branch(
    branch: Branch, config: BackboneConfig, *, dtype: torch.dtype, device: torch.device
) -> Branch:
    """The same branch with its parameters in another number format or place."""
    parameters = {
        name: tensor.to(device=device, dtype=dtype) for name, tensor in branch.parameters.items()
    }
    return build_branch(branch.spec, config, parameters)


def _check_parameters(parameters: Mapping[str, Tensor], shapes: Shapes) -> None:
    dtypes = {tensor.dtype for tensor in parameters.values()}
    expected = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
    wrong = [
        f"{name} is {tensor.dtype} {list(tensor.shape)}, expected {expected} {list(shapes[name])}"
        for name, tensor in parameters.items()
        if name in shapes
        and (
            tuple(tensor.shape) != shapes[name]
            or tensor.dtype is not expected
            or not tensor.is_floating_point()
        )
    ]
    missing, unused = shapes.keys() - parameters.keys(), parameters.keys() - shapes.keys()
    if missing or unused or wrong:
        raise ParameterMismatchError(missing=missing, unused=unused, wrong=wrong)
    for name, tensor in parameters.items():
        # A finite sum proves every entry finite, and is far cheaper than looking at each; a sum
        # that merely overflowed is settled by the exact look.
        if not torch.isfinite(tensor.detach().sum()) and not torch.isfinite(tensor).all():
            raise NonFiniteParameterError(name)
