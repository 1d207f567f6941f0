# ruff: noqa: ANN401 - torch leaves the types of these hooks open
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
"""The kernels of a GPU server on the CPU: the same code, with a stand-in for the flash kernel."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from doubles.flash import install_flash_double
from nunatak_model import Backbone
from nunatak_model.ops.attention import padded_attention, varlen_attention
from nunatak_model.ops.choice import Ops
from nunatak_model.ops.grouped import DEFAULT_PAGE_BYTES, PlanGroups, SlotBanks, kernel_groups
from nunatak_model.ops.rows import sum_by_segment

REFUSED_IN_A_RECORDING = {"_local_scalar_dense", "equal", "is_nonzero", "lift_fresh", "pin_memory"}
"""Operators that read numbers of the device, or bring numbers of the host to it."""


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


class Recorder:
    """Records like a device: replays run the same kernels on the same memory, and no Python."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replayed = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.num_recorded += 1
        run()
        tape = Tape()
        with tape:
            run()

        def replay() -> None:
            self.num_replayed += 1
            tape.replay()

        return replay


class Tape(TorchDispatchMode):
    """The operators that ran, each with its operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self._launches = list[tuple[Any, Any, Any, Any]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in REFUSED_IN_A_RECORDING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        results = func(*args, **(kwargs or {}))
        self._launches.append((func, args, kwargs or {}, results))
        return results

    def replay(self) -> None:
        """Run the operators again; each result overwrites the memory of its first result."""
        for func, args, kwargs, results in self._launches:
            for old, new in zip(
                tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True
            ):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
