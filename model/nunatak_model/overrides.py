"""What runs at a layer of a branch in place of, or beside, the frozen weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from nunatak_model.weights import LayerWeights, Linear, Norm


class LoraTarget(StrEnum):
    """The linear maps of a layer that can carry a low-rank update."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUTPUT = "attention_output"
    FEEDFORWARD_IN = "feedforward_in"
    FEEDFORWARD_OUT = "feedforward_out"


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
    """The two maps of one bottleneck adapter."""

    down: Linear
    up: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckLayer:
    """The frozen layer, with an adapter in either block and the task's own norms."""

    attention_adapter: Adapter
    attention_norm: Norm
    feedforward_adapter: Adapter
    output_norm: Norm


LayerOverride = OwnLayer | LoraLayer | BottleneckLayer
