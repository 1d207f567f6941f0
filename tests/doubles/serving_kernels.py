"""The kernels of a GPU server on the CPU: the same code, with a stand-in for the flash kernel."""

from dataclasses import replace

import torch

from doubles.flash import install_flash_double
from nunatak_model import Backbone
from nunatak_model.ops.attention import padded_attention, varlen_attention
from nunatak_model.ops.choice import Ops
from nunatak_model.ops.grouped import DEFAULT_PAGE_BYTES, PlanGroups, SlotBanks, kernel_groups
from nunatak_model.ops.rows import sum_by_segment


def with_gpu_kernels(
    backbone: Backbone, *, groups: PlanGroups = kernel_groups, page_bytes: int = DEFAULT_PAGE_BYTES
) -> Backbone:
    """The backbone with the kernels of a GPU: of a recent one, or with padded groups of any."""
    install_flash_double()
    banks = SlotBanks(dtype=backbone.dtype, device=backbone.device, page_bytes=page_bytes)
    attention = varlen_attention if groups is kernel_groups else padded_attention
    ops = Ops(attention=attention, sum_rows=sum_by_segment, groups=groups, banks=banks)
    return replace(backbone, ops=ops)


def banks_of(backbone: Backbone) -> SlotBanks:
    """The slots of a backbone of `with_gpu_kernels`."""
    if backbone.ops.banks is None:
        raise TypeError(f"{backbone.name} has no slots on {torch.device('cpu')}")
    return backbone.ops.banks
