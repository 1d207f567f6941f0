"""The methods by which a task's branch differs from the backbone; one file each."""

from nunatak_model.methods.base import MethodKind
from nunatak_model.methods.bottleneck import AdaptedBlocks, Bottleneck, Norms
from nunatak_model.methods.full import Full
from nunatak_model.methods.head_only import HeadOnly
from nunatak_model.methods.lora import Lora
from nunatak_model.methods.own_layers import TopK
from nunatak_model.overrides import AdapterInput, LoraTarget

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
