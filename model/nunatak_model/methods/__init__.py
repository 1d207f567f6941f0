"""The methods by which a task's branch differs from the backbone; one file each."""

from nunatak_model.methods.base import MethodKind
from nunatak_model.methods.bottleneck import Bottleneck
from nunatak_model.methods.full import Full
from nunatak_model.methods.head_only import HeadOnly
from nunatak_model.methods.lora import Lora
from nunatak_model.methods.topk import TopK
from nunatak_model.overrides import LoraTarget

Method = TopK | HeadOnly | Bottleneck | Lora | Full

__all__ = [
    "Bottleneck",
    "Full",
    "HeadOnly",
    "Lora",
    "LoraTarget",
    "Method",
    "MethodKind",
    "TopK",
]
