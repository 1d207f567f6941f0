"""The kernels of a GPU server on the CPU: the same code, with a stand-in for the flash kernel."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from doubles.flash import install_flash_double
from nunatak_model import Backbone
from nunatak_model.backbone import Ops
from nunatak_model.ops.attention import varlen_attention
from nunatak_model.ops.grouped import DEFAULT_PAGE_BYTES, SlotBanks
from nunatak_model.ops.rows import sum_by_segment


def with_gpu_kernels(backbone: Backbone, *, page_bytes: int = DEFAULT_PAGE_BYTES) -> Backbone:
    """The backbone with attention in one call, and products grouped over slots."""
    install_flash_double()
    banks = SlotBanks(dtype=backbone.dtype, device=backbone.device, page_bytes=page_bytes)
    return replace(
        backbone, ops=Ops(attention=varlen_attention, sum_rows=sum_by_segment, banks=banks)
    )


def banks_of(backbone: Backbone) -> SlotBanks:
    """The slots of a backbone of `with_gpu_kernels`."""
    if backbone.ops.banks is None:
        raise TypeError(f"{backbone.name} has no slots on {torch.device('cpu')}")
    return backbone.ops.banks


class Recorder:
    """Records like a device, with fixed memory for input and output."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replayed = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_recorded += 1
        output = run().clone()

        def replay() -> Tensor:
            self.num_replayed += 1
            return output.copy_(run())

        return replay
