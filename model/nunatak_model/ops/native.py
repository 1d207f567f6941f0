"""The native operators of the package `nunatak-ops`: on a CPU, one call for all tasks of a layer.

torch's own operations run one call for each task, and such a call costs as much as its products.
The package is optional, and `ops.choice` proves each operator before it serves. What an operator
does not cover (gradients, a weight in another layout or number format) runs by torch's operations.

The operators read the factors of updates and adapters by columns: a tensor [out, in] in the memory
of [in, out]. torch's operations read this layout as well, so a version is held once.

Axes: tokens = packed tokens of the batch, width = hidden width, in, out = widths of a map.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import Activation
from nunatak_model.ops.attention import (
    RunAttention,
    VarlenAttention,
    attention_by_runs,
    varlen_attention,
)
from nunatak_model.ops.low_rank import LoraUpdate
from nunatak_model.weights import Linear, Norm

PACKAGE = "nunatak_ops"
NATIVE_DTYPES = (torch.float32, torch.bfloat16)
LONGEST_ROW = 256
"""A batch with a longer row attends by runs: torch's kernel is faster for long rows."""
ACTIVATIONS = (None, *Activation)
"""The activations in the operators' order."""
MAX_FACTOR_ELEMENTS = 2**17
"""Larger maps are packed, because their products are large enough for torch's kernels."""

logger = logging.getLogger(__name__)


def has_native_operators() -> bool:
    """Whether the package is installed and loads; the log says if not."""
    if importlib.util.find_spec(PACKAGE) is None:
        logger.info("nunatak-ops is not installed; batches and integers are slower without it")
        return False
    try:
        importlib.import_module(PACKAGE)
    except (ImportError, OSError, RuntimeError) as error:
        logger.warning(
            "nunatak-ops does not load (%s); torch's own operations serve instead. "
            "Build nunatak-ops again for this version of torch",
            error,
        )
        return False
    return True


def native_attention(
    lengths: Sequence[int], device: torch.device
) -> VarlenAttention | RunAttention:
    """Prepare attention over packed rows by the native operator; by runs, if a row is long."""
    if max(lengths) > LONGEST_ROW:
        return attention_by_runs(lengths, device)
    return varlen_attention(lengths, device, kernel=_attend)


def _attend(
    query: Float[Tensor, "tokens heads head_width"],
    key: Float[Tensor, "tokens key_heads head_width"],
    value: Float[Tensor, "tokens key_heads head_width"],
    bounds: Tensor,
    longest: int,
    window: tuple[int, int],
) -> Float[Tensor, "tokens heads head_width"]:
    del longest
    if query.requires_grad:
        raise ValueError(
            "the native attention has no gradients; train on a backbone that is not packed"
        )
    scale = query.shape[2] ** -0.5
    return torch.ops.nunatak_ops.attention(query, key, value, bounds, *window, scale)


def integer_linear(
    x: Float[Tensor, "tokens in"], maps: Sequence[tuple[int, Linear]], activation: Activation | None
) -> Float[Tensor, "tokens out"]:
    """Run maps of packed integers (see `ops.int8`): each up to its end, from the end before."""
    if x.requires_grad:
        raise ValueError(
            "the native product has no gradients; train on a backbone that is not packed"
        )
    return torch.ops.nunatak_ops.integer_linear(
        x,
        [it.weight for _, it in maps],
        [it.scale for _, it in maps],
        [it.bias for _, it in maps if it.bias is not None],
        [end for end, _ in maps],
        ACTIVATIONS.index(activation),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The low-rank update of a task's tokens in some columns of the outputs."""

    tokens: slice
    first_column: int
    update: LoraUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterMaps:
    """The maps of an adapter over a task's tokens: `up(activation(down(x)))`."""

    tokens: slice
    down: Linear
    up: Linear


AddLowRank = Callable[[Tensor, Tensor, Sequence[LowRank]], None]
AddAdapters = Callable[[Tensor, Tensor, Sequence[AdapterMaps], Activation], None]
RunNorms = Callable[[Tensor, Sequence[tuple[int, Norm]], float], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKernels:
    """Operators that serve all tasks of a layer in one call; None where each task has its own."""

    low_rank: AddLowRank | None = None
    adapters: AddAdapters | None = None
    norms: RunNorms | None = None


NO_TASK_KERNELS = TaskKernels()


def add_low_rank(
    y: Float[Tensor, "tokens out"], x: Float[Tensor, "tokens in"], updates: Sequence[LowRank]
) -> None:
    """Add the updates of all tasks and targets to the outputs of the maps, in place.

    Semantics:
        for it in updates, token in it.tokens:
            y[token, it.first_column :] += scale * (x[token] @ down.T) @ up.T
    """
    torch.ops.nunatak_ops.low_rank_(
        y,
        x,
        [it.update.down for it in updates],
        [it.update.up for it in updates],
        [it.tokens.start for it in updates],
        [it.tokens.stop for it in updates],
        [it.first_column for it in updates],
        [it.update.scale for it in updates],
    )


def add_adapters(
    y: Float[Tensor, "tokens width"],
    x: Float[Tensor, "tokens width"],
    adapters: Sequence[AdapterMaps],
    activation: Activation,
) -> None:
    """Add the outputs of all adapters with this activation to the residual sum, in place.

    Semantics:
        for it in adapters, token in it.tokens:
            y[token] += up(activation(down(x[token])))
    """
    torch.ops.nunatak_ops.adapters_(
        y,
        x,
        [it.down.weight for it in adapters],
        [it.down.bias for it in adapters],
        [it.up.weight for it in adapters],
        [it.up.bias for it in adapters],
        [it.tokens.start for it in adapters],
        [it.tokens.stop for it in adapters],
        ACTIVATIONS.index(activation),
    )


def run_norms(
    x: Float[Tensor, "tokens width"], norms: Sequence[tuple[int, Norm]], epsilon: float
) -> Float[Tensor, "tokens width"]:
    """Normalise all tokens (see `layer_norm`): each norm up to its end, from the end before."""
    return torch.ops.nunatak_ops.layer_norms(
        x,
        [norm.weight for _, norm in norms],
        [norm.bias for _, norm in norms],
        [end for end, _ in norms],
        epsilon,
    )


NATIVE_TASK_KERNELS = TaskKernels(low_rank=add_low_rank, adapters=add_adapters, norms=run_norms)


def can_update(update: object, x: Tensor) -> TypeGuard[LoraUpdate]:
    """Whether the native operator adds this change of outputs. It adds no stacked updates."""
    return (
        isinstance(update, LoraUpdate)
        and not x.requires_grad
        and _is_readable(update.down, x)
        and _is_readable(update.up, x)
    )


def can_adapt(down: Linear, up: Linear, x: Tensor) -> bool:
    """Whether the native operator runs an adapter of these maps."""
    return (
        not x.requires_grad
        and all(it.bias is not None for it in (down, up))
        and _is_readable(down.weight, x)
        and _is_readable(up.weight, x)
    )


def can_normalise(x: Tensor, norms: Sequence[tuple[int, Norm]]) -> bool:
    """Whether the native operator runs these norms."""
    return (
        x.ndim == 2
        and x.is_contiguous()
        and not x.requires_grad
        and all(
            it.bias is not None and it.weight.ndim == 1 and it.weight.dtype is x.dtype
            for _, it in norms
        )
    )


def by_columns(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The factors of updates and adapters among the parameters, by columns."""
    return {
        name: laid_by_columns(tensor)
        for name, tensor in parameters.items()
        if name.endswith((".down", ".up", ".down.weight", ".up.weight"))
        and tensor.ndim == 2
        and tensor.numel() < MAX_FACTOR_ELEMENTS
    }


def laid_by_columns(factor: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """The same factor, in the memory of [in, out]."""
    return factor.t().contiguous().t()


def _is_readable(factor: Float[Tensor, "out in"], x: Tensor) -> bool:
    return (
        factor.ndim == 2
        and factor.dtype is x.dtype
        and not factor.is_mkldnn
        and (factor.shape[0] == 1 or factor.stride(0) == 1)
        and (factor.shape[1] == 1 or factor.stride(1) == factor.shape[0])
        and not factor.requires_grad
    )
