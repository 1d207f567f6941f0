"""The methods by which a task's branch differs from the backbone; one file each."""

from nunatak_model.methods.base import (
    Adapter,
    BottleneckLayer,
    LayerOverride,
    LoraLayer,
    LoraTarget,
    LoraUpdate,
    MethodKind,
    OwnLayer,
)
from nunatak_model.methods.bottleneck import Bottleneck
from nunatak_model.methods.full import Full
from nunatak_model.methods.head_only import HeadOnly
from nunatak_model.methods.lora import Lora
from nunatak_model.methods.topk import TopK

Method = TopK | HeadOnly | Bottleneck | Lora | Full

__all__ = [
    "Adapter",
    "Bottleneck",
    "BottleneckLayer",
    "Full",
    "HeadOnly",
    "LayerOverride",
    "Lora",
    "LoraLayer",
    "LoraTarget",
    "LoraUpdate",
    "Method",
    "MethodKind",
    "OwnLayer",
    "TopK",
]
