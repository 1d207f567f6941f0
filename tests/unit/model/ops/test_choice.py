"""Which kernels serve: those that agree with torch's own operations on this device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from doubles.backbones import Family, tiny_backbone
from doubles.fake_cuda import always
from doubles.serving_kernels import with_gpu_kernels
from nunatak_model import Backbone
from nunatak_model.ops.attention import (
    Attention,
    VarlenAttention,
    can_attend_varlen,
    padded_attention,
    varlen_attention,
)
from nunatak_model.ops.choice import PLAIN_OPS, Ops, ops_for, proven_ops
from nunatak_model.ops.grouped import PlanGroups, can_group, kernel_groups, padded_groups
from nunatak_model.ops.rows import Padding, sum_by_segment

MAPS = [(96, 32), (32, 32), (48, 32), (32, 48)]
CUDA = torch.device("cuda:0")
HALF = torch.bfloat16


def prove(backbone: Backbone, ops: Ops) -> Ops:
    return proven_ops(ops, backbone.config, maps=MAPS, dtype=backbone.dtype, device=backbone.device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (kernel_groups, ("flash_attention", "segment_sums", "grouped_products")),
        (padded_groups, ("padded_attention", "segment_sums", "padded_products")),
    ],
    ids=["kernel", "padded"],
)
def test_kernels_that_are_right_serve(
    family: Family,
    dtype: torch.dtype,
    groups: PlanGroups,
    names: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    backbone = with_gpu_kernels(tiny_backbone(family=family, dtype=dtype), groups=groups)

    ops = prove(backbone, backbone.ops)

    assert ops == backbone.ops
    assert ops.fast_kernels() == names
    assert caplog.records == []


def test_torchs_own_operations_need_no_proof() -> None:
    backbone = tiny_backbone()

    assert prove(backbone, PLAIN_OPS) == PLAIN_OPS
    assert PLAIN_OPS.fast_kernels() == ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Attention whose results or positions a test changes."""

    inner: Attention
    change: Callable[[Tensor], Tensor] = lambda context: context
    shift: int = 0
    is_wide: bool = False
    """Whether every token sees its whole row."""

    def positions(self) -> Tensor:
        return self.inner.positions() + self.shift

    def narrow(self, reach: int) -> Attention:
        return self if self.is_wide else replace(self, inner=self.inner.narrow(reach))

    def causal(self) -> Attention:
        return self if self.is_wide else replace(self, inner=self.inner.causal())

    def __call__(
        self, qkv: Tensor, *, num_heads: int, num_key_heads: int | None = None, dropout: float
    ) -> Tensor:
        context = self.inner(qkv, num_heads=num_heads, num_key_heads=num_key_heads, dropout=dropout)
        return self.change(context)


def spoil_last_token(values: Tensor) -> Tensor:
    spoilt = values.clone()
    spoilt[-1] *= 1.1
    return spoilt


def forget_bounds(lengths: Sequence[int], device: torch.device) -> Attention:
    return varlen_attention([sum(lengths)], device)


def without_numbers(values: Tensor) -> Tensor:
    return torch.full_like(values, torch.nan)


def refuse(*_: object) -> Tensor:
    raise RuntimeError(f"no kernel image is available\nValue: {torch.zeros(3, 3)}")


def is_missing(_: Sequence[int], device: torch.device) -> VarlenAttention:
    del device
    raise ImportError("cannot import name 'varlen_attn'")


def changed(**changes: object) -> Callable[[Sequence[int], torch.device], Attention]:
    def plan(lengths: Sequence[int], device: torch.device) -> Attention:
        return replace(Changed(inner=varlen_attention(lengths, device)), **changes)  # pyrefly: ignore[bad-argument-type]

    return plan


@pytest.mark.parametrize(
    "attention",
    [
        changed(change=spoil_last_token),
        changed(change=without_numbers),
        changed(change=refuse),
        changed(shift=1),
        changed(is_wide=True),
        forget_bounds,
        is_missing,
    ],
    ids=["one-token", "nan", "refuses", "positions", "window", "neighbours", "missing"],
)
def test_attention_that_fails_or_differs_is_replaced_with_one_warning(
    attention: Callable[[Sequence[int], torch.device], Attention], caplog: pytest.LogCaptureFixture
) -> None:
    backbone = with_gpu_kernels(tiny_backbone(family="modernbert"))

    ops = prove(backbone, replace(backbone.ops, attention=attention))

    assert ops == replace(backbone.ops, attention=padded_attention)
    (line,) = (it.getMessage() for it in caplog.records)
    assert "flash attention" in line
    assert "\n" not in line


def test_padded_attention_that_fails_is_replaced_by_torchs_own_operations(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = with_gpu_kernels(tiny_backbone(), groups=padded_groups)
    monkeypatch.setattr(Padding, "unpad", refuse)

    ops = prove(backbone, backbone.ops)

    assert ops == replace(PLAIN_OPS, sum_rows=sum_by_segment)
    messages = [it.getMessage() for it in caplog.records]
    assert ["padded attention" in it for it in messages] == [True, False]
    assert ["padded product" in it for it in messages] == [False, True]


@pytest.mark.parametrize("spoil", [spoil_last_token, refuse], ids=["one-row", "refuses"])
def test_sums_that_fail_or_differ_are_replaced_with_one_warning(
    spoil: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    backbone = with_gpu_kernels(tiny_backbone())

    def sum_rows(hidden: Tensor, lengths: Tensor) -> Tensor:
        return spoil(sum_by_segment(hidden, lengths))

    ops = prove(backbone, replace(backbone.ops, sum_rows=sum_rows))

    assert ops == replace(backbone.ops, sum_rows=PLAIN_OPS.sum_rows)
    assert len(caplog.records) == 1


def of_the_next_slot(x: Tensor, weight: Tensor, *, offs: Tensor) -> Tensor:
    return RIGHT(x, weight.roll(1, 0), offs=offs)


def without_the_last_token(x: Tensor, weight: Tensor, *, offs: Tensor) -> Tensor:
    return RIGHT(x, weight, offs=(offs - 1).clamp(min=0).to(torch.int32))


def only_narrow(x: Tensor, weight: Tensor, *, offs: Tensor) -> Tensor:
    if weight.shape[1] > 8:
        raise RuntimeError("Arch conditional MMA instruction used without targeting")
    return RIGHT(x, weight, offs=offs)


RIGHT = functional.grouped_mm


@pytest.mark.parametrize("product", [of_the_next_slot, without_the_last_token, only_narrow])
def test_a_grouped_product_that_fails_or_differs_is_not_used(
    product: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    monkeypatch.setattr(functional, "grouped_mm", product)

    ops = prove(backbone, backbone.ops)

    assert ops == replace(backbone.ops, groups=padded_groups)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("capability", "flash", "grouped"),
    [
        ((7, 5), False, False),
        ((8, 0), True, False),
        ((8, 6), True, False),
        ((8, 9), True, False),
        ((9, 0), True, True),
        ((9, 4), True, False),
        ((10, 0), True, True),
        ((10, 3), True, False),
        ((12, 0), True, False),
    ],
    ids=str,
)
def test_a_kernel_is_proposed_for_exactly_the_devices_it_is_built_for(
    capability: tuple[int, int], *, flash: bool, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_backbone().config
    monkeypatch.setattr(torch.cuda, "get_device_capability", always(capability))
    monkeypatch.setattr(torch.cuda, "mem_get_info", always((2**34, 2**34)))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)

    ops = ops_for(config, dtype=HALF, device=CUDA)

    assert ops.attention is (varlen_attention if flash else padded_attention)
    assert ops.groups is (kernel_groups if grouped else padded_groups)
    assert ops.banks is not None


def test_no_kernel_is_proposed_that_the_build_of_torch_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", always((9, 0)))
    config = tiny_backbone().config

    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert not can_attend_varlen(HALF, CUDA, head_width=config.head_width)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not can_group(config, dtype=HALF, device=CUDA)
