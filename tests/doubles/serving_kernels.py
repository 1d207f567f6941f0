"""The kernels of a GPU server on the CPU: the same code, with a stand-in for the flash kernel.

torch has this kernel for CUDA alone. The stand-in is registered for torch's own operators, so all
code that calls the kernel runs unchanged. The stand-in computes the definition: every row alone,
every token over the keys in its window.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention import varlen

from nunatak_model import Backbone
from nunatak_model.ops.attention import padded_attention, varlen_attention
from nunatak_model.ops.choice import Ops
from nunatak_model.ops.grouped import DEFAULT_PAGE_BYTES, PlanGroups, SlotBanks, kernel_groups
from nunatak_model.ops.rows import sum_by_segment

OPERATOR, FALLBACK = "aten::_flash_attention_forward", "torch_attn::_varlen_attn"


@cache
def install_flash_double() -> None:
    """Let torch's flash operators run on the CPU, from now on in this process."""
    if not callable(varlen.varlen_attn):
        raise TypeError("torch has no varlen_attn to stand in for")
    torch.library.register_kernel(OPERATOR, "cpu", _attend_by_operator)
    torch.library.register_kernel(FALLBACK, "cpu", _attend_by_function)


def _attend_by_operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *options: object,
    scale: float | None = None,
    window_size_left: int = -1,
    window_size_right: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if any(options):
        raise ValueError(f"stands in for the kernel as this project calls it, got {options}")
    arguments = (query, key, value, cum_seq_q, cum_seq_k, max_q, max_k)
    window = [window_size_left, window_size_right]
    # The operator has no option for shared heads: the shapes say so.
    out, sums, state = _attend(*arguments, *options[1:2], scale, window, True)  # noqa: FBT003
    return out, sums, state, torch.empty(0), torch.empty(0)


def _attend_by_function(*arguments: object) -> tuple[Tensor, Tensor, Tensor]:
    return _attend(*arguments)  # pyrefly: ignore[bad-argument-type] - torch checks them


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *options: object,
) -> tuple[Tensor, Tensor, Tensor]:
    bounds = [int(bound) for bound in cu_seq_q]
    if cu_seq_q.dtype is not torch.int32 or not torch.equal(cu_seq_q, cu_seq_k):
        raise ValueError("the kernel takes int32 bounds; here queries and keys have the same ones")
    if max(end - begin for begin, end in pairwise(bounds)) > min(max_q, max_k):
        raise ValueError(f"a row is longer than {max_q}, the longest row by the kernel's argument")
    # Arguments at their defaults are left out at the end.
    is_causal, scale, window_size, shares_heads = (*options, False)[:4]
    if scale is not None or not isinstance(window_size, list):
        raise ValueError("stands in for the kernel as this project calls it, no further")
    left, right = cast("list[int]", window_size)
    if is_causal:
        right = 0
    if query.shape[1] != key.shape[1] and not shares_heads:
        raise ValueError("the kernel shares heads of keys and values only where the call says so")
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    # Tokens after the last bound are undefined, so the stand-in writes a value that no test can
    # overlook.
    out = torch.full(query.shape, torch.nan, dtype=query.dtype)
    for begin, end in pairwise(bounds):
        places = torch.arange(end - begin)
        ahead = places.unsqueeze(0) - places.unsqueeze(1)
        seen = (ahead <= (right if right >= 0 else end)) & (-ahead <= (left if left >= 0 else end))
        q, k, v = (it[begin:end].float().transpose(0, 1) for it in (query, key, value))
        scores = q @ k.transpose(1, 2) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        out[begin:end] = (weights @ v).transpose(0, 1).to(query.dtype)
    return out, torch.empty(0), torch.zeros(2, dtype=torch.uint64)


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
