"""What runs at a layer of a branch in place of, or beside, the frozen weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from nunatak_model.config import Activation
from nunatak_model.weights import LayerWeights, Linear, Norm


class LoraTarget(StrEnum):
    """The linear maps of a layer that can carry a low-rank update."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUTPUT = "attention_output"
    FEEDFORWARD_IN = "feedforward_in"
    FEEDFORWARD_OUT = "feedforward_out"


class AdapterInput(StrEnum):
    """What a bottleneck adapter of a block reads."""

    BLOCK = "block"
    """The block's output, before the residual addition (Houlsby et al. 2019, He et al. 2021)."""
    NORMED_SUM = "normed_sum"
    """The norm of block and residual, which is run again over the adapted sum (Pfeiffer et al.
    2020, as AdapterHub computes it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLayer:
    """The task runs its own copy of the layer."""

    weights: LayerWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraUpdate:
    """`y += scale * (x @ down.T) @ up.T`."""

    down: Tensor
    up: Tensor
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayer:
    """The frozen layer, with low-rank updates of some of its linear maps."""

    updates: Mapping[LoraTarget, LoraUpdate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One bottleneck adapter: `up(activation(down(x)))`."""

    down: Linear
    up: Linear
    activation: Activation
    reads: AdapterInput


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckLayer:
    """The frozen layer, with an adapter in one or both blocks.

    A block without an adapter has none here; a norm that is None is the frozen one.
    """

    attention_adapter: Adapter | None
    attention_norm: Norm | None
    feedforward_adapter: Adapter | None
    output_norm: Norm | None


LayerOverride = OwnLayer | LoraLayer | BottleneckLayer
