"""The methods by which a task's branch differs from the backbone."""

from nunatak_model.layer import AdapterInput, LoraTarget
from nunatak_model.methods.base import MethodKind
from nunatak_model.methods.bottleneck import AdaptedBlocks, Bottleneck, Norms
from nunatak_model.methods.lora import Lora
from nunatak_model.methods.own_layers import Full, HeadOnly, TopK

Method = TopK | HeadOnly | Bottleneck | Lora | Full

__all__ = [
    "AdaptedBlocks",
    "AdapterInput",
    "Bottleneck",
    "Full",
    "HeadOnly",
    "Lora",
    "LoraTarget",
    "Method",
    "MethodKind",
    "Norms",
    "TopK",
]
