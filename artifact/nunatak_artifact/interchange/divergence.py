"""Where a fine-tuned encoder leaves its backbone: the split depth, found by comparing tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nunatak_model import Backbone, Full, HeadOnly, TopK

EMBEDDINGS, LAYERS = "embeddings", "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Which parts of an encoder are not, bit for bit, those of the backbone."""

    embeddings: bool
    layers: tuple[int, ...]
    """Ascending."""
    num_layers: int

    def method(self) -> TopK | HeadOnly | Full:
        """The method that owns what differs, and all that is computed from it."""
        if self.embeddings:
            return Full()
        if not self.layers:
            return HeadOnly()
        return TopK(num_layers=self.num_layers - self.layers[0])

    def describe(self) -> str:
        """What differs and what follows from it, in a few words."""
        method = self.method()
        match method:
            case HeadOnly():
                return f"no layer differs: head on all {self.num_layers} layers"
            case TopK():
                return f"{_layers(self.layers)}: top-{method.num_layers} of {self.num_layers}"
            case Full():
                return "the embeddings differ: a full copy"


def find_divergence(encoder: Mapping[str, Tensor], backbone: Backbone) -> Divergence:
    """Compare all tensors of an encoder with the backbone's; both are named as in the backbone."""
    differing = [
        name
        for name, frozen in backbone.parameters.items()
        if not torch.equal(encoder[name].to(torch.float32), frozen.cpu().to(torch.float32))
    ]
    layers = {int(name.split(".")[1]) for name in differing if name.startswith(f"{LAYERS}.")}
    return Divergence(
        embeddings=any(name.startswith(f"{EMBEDDINGS}.") for name in differing),
        layers=tuple(sorted(layers)),
        num_layers=backbone.config.num_layers,
    )


def _layers(numbers: Sequence[int]) -> str:
    """`layer 3 differs`, or `layers 0, 3-5 differ`."""
    if len(numbers) == 1:
        return f"layer {numbers[0]} differs"
    gaps = [(before, after) for before, after in pairwise(numbers) if after != before + 1]
    starts = [numbers[0], *(after for _, after in gaps)]
    ends = [*(before for before, _ in gaps), numbers[-1]]
    runs = (
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    )
    return f"layers {', '.join(runs)} differ"
