"""What computes on a device: chosen once, when a backbone is made ready to serve."""

from dataclasses import dataclass

import torch

from nunatak_model.config import BackboneConfig
from nunatak_model.ops.attention import PlanAttention, attention_by_runs
from nunatak_model.ops.grouped import can_group
from nunatak_model.ops.rows import SumRows, sum_by_index, sum_by_segment
from nunatak_model.ops.slots import SlotBanks
from nunatak_model.ops.varlen import can_attend_varlen, varlen_attention

PAGE_SHARE = 1 / 64
"""Of a device's memory, for one page of slots; how much may lie open for versions of one form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One choice for each concern; the plan of a batch is the same under all of them."""

    attention: PlanAttention = attention_by_runs
    sum_rows: SumRows = sum_by_index
    banks: SlotBanks | None = None
    """Where tasks lie, for products grouped over them; None where each runs by itself."""


PLAIN_KERNELS = Kernels()
"""What runs everywhere, and what training runs."""


def kernels_for(config: BackboneConfig, *, dtype: torch.dtype, device: torch.device) -> Kernels:
    """The kernels that serve such a backbone fastest on this device."""
    varlen = can_attend_varlen(dtype, device, head_width=config.head_width)
    banks = None
    if can_group(config, dtype=dtype, device=device):
        _, memory = torch.cuda.mem_get_info(device)
        banks = SlotBanks(dtype=dtype, device=device, page_bytes=int(PAGE_SHARE * memory))
    return Kernels(
        attention=varlen_attention if varlen else attention_by_runs,
        sum_rows=sum_by_index if device.type == "cpu" else sum_by_segment,
        banks=banks,
    )
