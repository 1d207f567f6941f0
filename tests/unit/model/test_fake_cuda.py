# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
"""The mixed forward on every kind of CUDA device, by tensors without numbers.

Torch checks devices, dtypes, shapes, strides and alignment as a device would. The tests also hold
the number of launches and of copies below ceilings, so that nothing becomes slow unnoticed.
"""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from doubles.fake_cuda import Launches, fake_cuda, on_fake_device, trusting
from doubles.fake_cuda_cases import (
    CUDA,
    HALF,
    METHODS,
    OTHER_HALF,
    WHOLE,
    Case,
    check_logits,
    on_the_host,
    packed,
    random_branch,
    run,
    serving,
    tasks_of_one_form,
    text,
)
from doubles.refusals import raises
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, Row, TrunkCache
from nunatak_model.ops.attention import VarlenAttention, varlen_attention
from nunatak_model.ops.choice import proven_ops
from nunatak_model.ops.grouped import KernelGroups, grouped_linear
from nunatak_server.engine.compute import BatchCompute

MIXED = [
    Case(capability=(7, 5), family="bert", dtype=OTHER_HALF),
    Case(capability=(8, 6), family="modernbert", dtype=OTHER_HALF),
    Case(capability=(9, 0), family="mpnet", dtype=HALF),
    Case(capability=(10, 0), family="roberta", dtype=HALF),
    Case(capability=(12, 0), family="qwen3", dtype=WHOLE),
]
"""Every choice of kernels. `test_fake_cuda_cases.py` has all devices, families and formats."""


def mixed_rows(backbone: Backbone) -> list[Row]:
    """Tasks of each method, two where they are grouped, with texts of different lengths."""
    branches = [
        branch
        for index, method in enumerate(METHODS)
        for branch in tasks_of_one_form(backbone, method, 2, index=index)
    ]
    texts = [text(length, seed=length) for length in (1, 9, 9, 30, 64)]
    return [
        Row(encoding=texts[index % len(texts)], branch=branch)
        for index, branch in enumerate(branches)
    ]


@pytest.mark.parametrize("case", MIXED, ids=str)
def test_a_batch_of_all_methods_runs_without_waiting_for_the_device(case: Case) -> None:
    with serving(case) as backbone:
        rows = mixed_rows(backbone)
        trunk = TrunkCache(max_bytes=2**20)

        for _ in range(2):
            logits, _ = run(backbone, rows, trunk=trunk)

            check_logits(rows, logits)
        assert trunk.stats.hits > 0


HOPPER = Case(capability=(9, 0), family="bert", dtype=HALF)
AMPERE = Case(capability=(8, 6), family="bert", dtype=HALF)
TURING = Case(capability=(7, 5), family="bert", dtype=WHOLE)
LORA = Lora(rank=8, alpha=5.0, targets=QUERY_AND_VALUE)
NUM_TASKS = 4
CEILINGS = [
    (HOPPER, HeadOnly(), (41, 5)),
    (HOPPER, LORA, (54, 6)),
    (HOPPER, Bottleneck(size=8), (98, 6)),
    (HOPPER, TopK(num_layers=1), (63, 7)),
    (AMPERE, HeadOnly(), (41, 5)),
    (AMPERE, LORA, (62, 6)),
    (AMPERE, Bottleneck(size=8), (90, 6)),
    (AMPERE, TopK(num_layers=1), (63, 7)),
]
"""Most launches and copies of one forward of 4 texts to 4 tasks, on a backbone of 2 layers."""


@pytest.mark.parametrize(
    ("case", "method", "ceiling"), CEILINGS, ids=lambda it: str(getattr(it, "kind", it))
)
def test_launches_and_copies_stay_below_their_ceilings(
    case: Case, method: Method, ceiling: tuple[int, int]
) -> None:
    with serving(case) as backbone:
        rows = [
            Row(
                encoding=text(9 + index, seed=index),
                branch=random_branch(backbone, method, index=len(HeadKind) * index),
            )
            for index in range(NUM_TASKS)
        ]
        _, count = run(backbone, rows)

    assert count.launches <= ceiling[0], count.operators
    assert count.copies <= ceiling[1], count.operators


ROBERTA_BASE = replace(
    on_the_host("roberta").config,
    hidden_width=768, num_layers=12, num_heads=12, intermediate_width=3072,
)  # fmt: skip
MANY = 64
MANY_CEILINGS = [
    (AMPERE, LORA, MANY, (262, 6)),
    (AMPERE, Bottleneck(size=64), MANY, (769, 8)),
    (AMPERE, TopK(num_layers=1), 1, (199, 9)),
    (TURING, LORA, MANY, (327, 7)),
    (TURING, TopK(num_layers=1), 1, (220, 9)),
]
"""Most launches and copies of one forward of some texts to 64 tasks, on RoBERTa base."""


@pytest.mark.parametrize(
    ("case", "method", "num_texts", "ceiling"),
    MANY_CEILINGS,
    ids=lambda it: str(getattr(it, "kind", it)),
)
def test_many_tasks_take_few_launches(
    case: Case, method: Method, num_texts: int, ceiling: tuple[int, int]
) -> None:
    chance = random.Random(0)
    texts = [text(chance.randint(16, 48), seed=index) for index in range(num_texts)]
    with fake_cuda(case.capability):
        backbone = packed(
            on_fake_device(on_the_host("roberta"), dtype=case.dtype, config=ROBERTA_BASE)
        )
        rows = [
            Row(encoding=texts[index % num_texts], branch=branch)
            for index, branch in enumerate(tasks_of_one_form(backbone, method, MANY))
        ]
        _, count = run(backbone, rows)

    assert count.launches <= ceiling[0], count.operators
    assert count.copies <= ceiling[1], count.operators


def read_back(hidden: Tensor) -> None:
    hidden.sum().item()


def test_a_number_that_the_host_reads_is_found() -> None:
    with fake_cuda((9, 0)), Launches(), pytest.raises(Exception, match="_local_scalar_dense"):
        read_back(torch.ones(2, device="cuda"))


def test_what_a_device_refuses_is_refused_here() -> None:
    with fake_cuda((9, 0)), torch.no_grad(), Launches():
        x = torch.ones(6, 16, dtype=HALF, device=CUDA)
        weight = torch.ones(2, 8, 16, dtype=HALF, device=CUDA)
        ends = torch.ones(2, dtype=torch.int32, device=CUDA)
        slot_of = torch.zeros(6, dtype=torch.int64, device=CUDA)
        right = KernelGroups(ends=ends, slot_of=slot_of)
        assert grouped_linear(x, weight, None, right).shape == (6, 8)

        with pytest.raises(RuntimeError, match="16 bytes"):
            grouped_linear(x[:, :3].contiguous(), weight[:, :, :3].contiguous(), None, right)
        with pytest.raises(RuntimeError, match="BF16"):
            grouped_linear(x.float(), weight.float(), None, right)
        with pytest.raises(RuntimeError, match="same device"):
            x.index_select(0, torch.zeros(6, dtype=torch.int64))
        with pytest.raises(AssertionError, match="16 bytes"):
            grouped_linear(x.new_ones(7, 24)[1:, 2:18], weight, None, right)
        with pytest.raises(AssertionError, match="reads a tensor of the host"):
            torch.ops.aten.index(x, [torch.zeros(6, dtype=torch.int64)])
        with pytest.raises(AssertionError, match="wait"):
            x.to("cpu")
        attention = varlen_attention([2, 4], CUDA)
        assert attention(torch.ones(6, 96, dtype=HALF, device=CUDA), num_heads=4, dropout=0.0).shape
        with pytest.raises(AssertionError, match="float32"):
            attention(torch.ones(6, 96, device=CUDA), num_heads=4, dropout=0.0)


def test_a_kernel_that_stops_the_device_ends_the_start_with_the_way_out() -> None:
    def stop(_: Sequence[int], device: torch.device) -> VarlenAttention:
        raise torch.AcceleratorError(f"CUDA error: an illegal instruction was encountered {device}")

    def synchronize(_: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal instruction was encountered")

    with serving(HOPPER) as backbone, trusting(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", synchronize)
        ops = replace(backbone.ops, attention=stop)
        with raises("invalid_settings", match="NUNATAK_KERNELS=plain"):
            proven_ops(ops, backbone.config, maps=[(32, 32)], dtype=HALF, device=CUDA)


def test_a_batch_runs_on_the_device_of_its_backbone_whatever_thread_computes_it() -> None:
    chosen = list[torch.device]()

    def choose(device: torch.device) -> AbstractContextManager[None]:
        chosen.append(device)
        return nullcontext()

    with serving(HOPPER) as backbone, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device", choose)
        row = Row(encoding=text(3), branch=random_branch(backbone, HeadOnly()))
        with pytest.raises(Exception, match=r"CUDA|item"):
            BatchCompute(backbone)([row])

    assert set(chosen) == {CUDA}
