# pyright: reportUnknownMemberType=false
"""Cases of a server on a CUDA device that is not there: its backbone, tasks, texts and work."""

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

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
from nunatak_model.branch import BranchSlots
from nunatak_model.ops.choice import ops_for
from nunatak_model.ops.grouped import Slot

StackT = TypeVar("StackT")
CUDA = torch.device("cuda:0")
HALF, OTHER_HALF, WHOLE = torch.bfloat16, torch.float16, torch.float32
METHODS: tuple[Method, ...] = (
    HeadOnly(),
    TopK(num_layers=1),
    Lora(rank=3, alpha=5.0, targets=QUERY_AND_VALUE),
    Lora(rank=8, alpha=5.0, targets=tuple(LinearMap), first_layer=1),
    Ia3(),
    Bottleneck(size=5),
    Full(),
)
GROUPED = {(9, 0), (10, 0)}
FLASH_FROM = (8, 0)
WITH_PAIR_TERMS = ("deberta-v2", "mpnet")
"""Families whose attention no fast kernel computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A device, a backbone and a number format."""

    capability: tuple[int, int]
    family: Family
    dtype: torch.dtype

    @property
    def fast_kernels(self) -> tuple[str, ...]:
        """The fast kernels that such a device has for the backbone."""
        has_terms = self.family in WITH_PAIR_TERMS
        has_flash = self.dtype is not WHOLE and self.capability >= FLASH_FROM
        is_grouped = self.dtype is HALF and self.capability in GROUPED
        expected = {
            "flash_attention": has_flash and not has_terms,
            "padded_attention": not has_flash and not has_terms,
            "segment_sums": True,
            "grouped_products": is_grouped and not has_terms,
            "padded_products": not is_grouped and not has_terms,
        }
        return tuple(name for name, is_fast in expected.items() if is_fast)

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{major}.{minor}-{self.family}-{str(self.dtype).removeprefix('torch.')}"


@cache
def on_the_host(family: Family) -> Backbone:
    return tiny_backbone(family=family, num_layers=2)


@contextmanager
def serving(case: Case) -> Generator[Backbone]:
    """A server's backbone on a device that is not there."""
    plain = on_the_host(case.family)
    with fake_cuda(case.capability):
        yield packed(on_fake_device(plain, dtype=case.dtype))


@contextmanager
def serving_unproven(case: Case) -> Generator[Backbone]:
    """The same backbone, whose kernels did not prove themselves; a fifth of the time."""
    plain = on_the_host(case.family)
    with fake_cuda(case.capability):
        backbone = on_fake_device(plain, dtype=case.dtype)
        yield replace(backbone, ops=ops_for(backbone.config, dtype=case.dtype, device=CUDA))


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


def tasks_of_one_form(
    backbone: Backbone, method: Method, count: int, *, index: int = 0
) -> list[Branch]:
    """Tasks in slots of their own, with the numbers of the first task of their page."""
    found = [random_branch(backbone, method, index=index)]
    while len(found) < count:
        slots = found[-1].slots
        pages = [] if slots is None else [it.page for it in (slots.layers, slots.head) if it]
        if slots is None or not all(page.free for page in pages):
            found.append(random_branch(backbone, method, index=index))
            continue
        layers = slots.layers and next_slot(slots.layers)
        taken = BranchSlots(layers=layers, head=next_slot(slots.head))
        found.append(replace(found[-1], slots=taken))
    return found


def next_slot(slot: Slot[StackT]) -> Slot[StackT]:
    return Slot(slot.page, slot.page.free.pop())


def text(num_tokens: int, *, seed: int = 0) -> Encoding:
    chance = random.Random(seed)
    tokens = tuple(chance.randint(5, 60) for _ in range(num_tokens))
    return Encoding(token_ids=tokens, type_ids=(0,) * num_tokens)


def run(
    backbone: Backbone, rows: Sequence[Row], *, trunk: TrunkCache | None = None
) -> tuple[list[Tensor], Count]:
    with torch.no_grad(), Launches() as launches:
        logits = forward(backbone, rows, trunk=trunk)
    return logits, launches.count


def check_logits(rows: Sequence[Row], logits: Sequence[Tensor]) -> None:
    """Check the shape, the device and the number format of each row's answer."""
    for row, found in zip(rows, logits, strict=True):
        head = row.branch.spec.head
        each = (row.encoding.num_tokens,) if head.kind.reads_tokens else ()
        assert tuple(found.shape) == (*each, head.num_labels)
        assert (found.device, found.dtype) == (CUDA, torch.float32)
