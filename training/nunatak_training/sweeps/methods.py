"""The methods that an axis of a sweep stands for."""

from collections.abc import Sequence

from nunatak_model import BackboneConfig, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_training.errors import InvalidSweepError
from nunatak_training.sweeps.grid import (
    BottleneckAxis,
    FullAxis,
    HeadAxis,
    LoraAxis,
    MethodAxis,
    TopKAxis,
)


def methods_of(axis: MethodAxis, config: BackboneConfig) -> Sequence[Method]:
    """The methods of an axis on a backbone.

    Raises:
        InvalidSweepError: the backbone has fewer layers.
    """
    match axis:
        case TopKAxis():
            counts = axis.layers or tuple(config.num_layers - frozen for frozen in axis.frozen)
            return [_topmost(count, config) for count in counts]
        case HeadAxis():
            return [HeadOnly()]
        case BottleneckAxis():
            return [Bottleneck(size=size, first_layer=axis.first_layer) for size in axis.sizes]
        case LoraAxis():
            return [Lora(rank=rank, first_layer=axis.first_layer) for rank in axis.ranks]
        case FullAxis():
            return [Full()]


def _topmost(count: int, config: BackboneConfig) -> TopK | HeadOnly:
    if not 0 <= count <= config.num_layers:
        raise InvalidSweepError(
            "methods",
            f"a backbone of {config.num_layers} layers has no {count} to tune; its frozen layers "
            f"are 0 to {config.num_layers}",
        )
    return TopK(num_layers=count) if count else HeadOnly()
