"""The maths of the methods by which a task's branch differs from the backbone."""

from typing import assert_never

from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_model.methods.base import MethodMaths
from nunatak_model.methods.bottleneck import BottleneckMaths
from nunatak_model.methods.lora import LoraMaths
from nunatak_model.methods.own_layers import FullMaths, HeadOnlyMaths, TopKMaths


def maths_of(method: Method) -> MethodMaths:
    """Return what computes with a method."""
    match method:
        case TopK():
            return TopKMaths(method=method)
        case HeadOnly():
            return HeadOnlyMaths()
        case Bottleneck():
            return BottleneckMaths(method=method)
        case Lora():
            return LoraMaths(method=method)
        case Full():
            return FullMaths()
        case _:
            assert_never(method)


__all__ = ["MethodMaths", "maths_of"]
