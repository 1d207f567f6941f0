"""The mixed forward on every kind of CUDA device, by tensors without numbers.

Torch checks devices, dtypes, shapes, strides and alignment as a device would. The tests also hold
the number of launches and of copies below ceilings, so that nothing becomes slow unnoticed.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from doubles.backbones import Family, tiny_backbone
from doubles.fake_cuda import Count, Launches, fake_cuda, on_fake_device, trusting
from nunatak_contract.enums import HeadKind, LinearMap
from nunatak_contract.methods import (
    QUERY_AND_VALUE,
    Bottleneck,
    Full,
    HeadOnly,
    Ia3,
    Lora,
    Method,
    TopK,
)
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    Encoding,
    Row,
    TrunkCache,
    build_branch,
    convert_branch,
    default_head,
    forward,
    pack_backbone,
    parameter_shapes,
)

CUDA = torch.device("cuda:0")
METHODS: tuple[Method, ...] = (
    HeadOnly(),
    TopK(num_layers=1),
    TopK(num_layers=2),
    Lora(rank=3, alpha=5.0, targets=QUERY_AND_VALUE),
    Lora(rank=8, alpha=5.0, targets=tuple(LinearMap), first_layer=1),
    Ia3(),
    Bottleneck(size=5),
    Full(),
)
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
FAMILIES: tuple[Family, ...] = ("bert", "roberta", "modernbert")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A device, a backbone and a number format."""

    capability: tuple[int, int]
    family: Family
    dtype: torch.dtype

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{major}.{minor}-{self.family}-{str(self.dtype).removeprefix('torch.')}"


def covering_cases() -> list[Case]:
    """Every pair of values of two of the three; the device decides the kernels with the dtype."""
    return [
        Case(capability=capability, family=FAMILIES[(row + column) % 3], dtype=dtype)
        for row, capability in enumerate(CAPABILITIES)
        for column, dtype in enumerate(DTYPES)
    ]


@cache
def on_the_host(family: Family) -> Backbone:
    return tiny_backbone(family=family, num_layers=3)


@contextmanager
def serving(case: Case) -> Generator[Backbone]:
    """A server's backbone on a device that is not there."""
    plain = on_the_host(case.family)
    with fake_cuda(case.capability):
        yield packed(on_fake_device(plain, dtype=case.dtype))


def packed(backbone: Backbone) -> Backbone:
    with trusting():
        return pack_backbone(backbone)


def random_branch(backbone: Backbone, method: Method, *, index: int = 0) -> Branch:
    """A branch without numbers, on the device as a load leaves it."""
    kind = list(HeadKind)[index % len(HeadKind)]
    head = default_head(backbone, kind=kind, num_labels=kind.fixed_outputs or 2 + index % 5)
    spec = BranchSpec(method=method, head=head)
    parameters = {
        name: torch.empty(shape) for name, shape in parameter_shapes(spec, backbone.config).items()
    }
    with trusting():
        return convert_branch(build_branch(spec, backbone.config, parameters), backbone)


def text(num_tokens: int, *, seed: int = 0) -> Encoding:
    chance = random.Random(seed)
    tokens = tuple(chance.randint(5, 60) for _ in range(num_tokens))
    return Encoding(token_ids=tokens, type_ids=(0,) * num_tokens)


def mixed_rows(backbone: Backbone) -> list[Row]:
    """Two tasks of each method, with texts of different lengths, some of them the same."""
    branches = [
        random_branch(backbone, method, index=index)
        for index, method in enumerate((*METHODS, *METHODS))
    ]
    texts = [text(length, seed=length) for length in (1, 9, 9, 30, 64)]
    return [
        Row(encoding=texts[index % len(texts)], branch=branch)
        for index, branch in enumerate(branches)
    ]


def run(
    backbone: Backbone, rows: Sequence[Row], **options: TrunkCache
) -> tuple[list[Tensor], Count]:
    with torch.inference_mode(), Launches() as launches:
        logits = forward(backbone, rows, **options)
    return logits, launches.count


@pytest.mark.parametrize("case", covering_cases(), ids=str)
def test_every_method_runs_on_every_device_without_waiting_for_it(case: Case) -> None:
    with serving(case) as backbone:
        rows = mixed_rows(backbone)
        trunk = TrunkCache(max_bytes=2**20)

        for options in ({}, {"trunk": trunk}, {"trunk": trunk}):
            logits, _ = run(backbone, rows, **options)

            for row, found in zip(rows, logits, strict=True):
                head = row.branch.spec.head
                each = (row.encoding.num_tokens,) if head.kind.reads_tokens else ()
                assert tuple(found.shape) == (*each, head.num_labels)
                assert (found.device, found.dtype) == (CUDA, torch.float32)
        assert trunk.stats.hits > 0

    half = case.dtype is not torch.float32
    is_grouped = case.capability in {(9, 0), (10, 0)} and case.dtype is torch.bfloat16
    expected = {
        "flash_attention": half and case.capability >= (8, 0),
        "segment_sums": True,
        "grouped_products": is_grouped,
    }
    assert backbone.fast_kernels == tuple(name for name, is_fast in expected.items() if is_fast)
