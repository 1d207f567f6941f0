"""The maths of the methods by which a task's branch differs from the backbone."""

from collections.abc import Mapping
from typing import Any

from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model.methods.base import MethodMaths
from nunatak_model.methods.bottleneck import BottleneckMaths
from nunatak_model.methods.ia3 import Ia3Maths
from nunatak_model.methods.lora import LoraMaths
from nunatak_model.methods.own_layers import FullMaths, HeadOnlyMaths, TopKMaths

MATHS: Mapping[type[Method], type[MethodMaths[Any]]] = {
    TopK: TopKMaths,
    HeadOnly: HeadOnlyMaths,
    Bottleneck: BottleneckMaths,
    Lora: LoraMaths,
    Ia3: Ia3Maths,
    Full: FullMaths,
}


def maths_of(method: Method) -> MethodMaths[Method]:
    return MATHS[type(method)](method=method)


__all__ = ["MATHS", "MethodMaths", "maths_of"]
