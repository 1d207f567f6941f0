"""The mixed forward on every kind of CUDA device, by tensors without numbers.

Torch checks devices, dtypes, shapes, strides and alignment as a device would. The tests also hold
the number of launches and of copies below ceilings, so that nothing becomes slow unnoticed.
"""

import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from doubles.backbones import FAMILIES, Family, random_text, tiny_backbone
from doubles.fake_cuda import Count, Launches, fake_cuda, on_fake_device, trusting
from doubles.refusals import raises
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
    BackboneConfig,
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
from nunatak_model.ops.attention import VarlenAttention, varlen_attention
from nunatak_model.ops.choice import ops_for, proven_ops
from nunatak_model.ops.grouped import KernelGroups, Slot, grouped_linear
from nunatak_server.engine.compute import BatchCompute

pytestmark = pytest.mark.usefixtures("unchecked")
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
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
FORMATS = (HALF, OTHER_HALF, WHOLE)
DEVICES = [
    (capability, FORMATS[(index + turn) % len(FORMATS)])
    for turn in range(len(FORMATS))
    for index, capability in enumerate(CAPABILITIES)
]
"""Every capability with every format; any six in a row have all of both."""
FEW_TASKS = 2
LAUNCHES: Mapping[Family, tuple[int, ...]] = {
    "bert": (50, 67, 74, 65, 60, 94, 84),
    "roberta": (49, 67, 66, 90, 60, 94, 75),
    "distilbert": (39, 74, 56, 75, 67, 92, 78),
    "electra": (42, 68, 75, 92, 69, 95, 77),
    "deberta-v2": (94, 147, 191, 168, 183, 193, 193),
    "mpnet": (50, 77, 83, 86, 81, 107, 105),
    "modernbert": (107, 153, 116, 154, 119, 132, 126),
    "llama": (106, 139, 125, 144, 125, 148, 170),
    "qwen3": (126, 165, 165, 179, 168, 159, 240),
    "eurobert": (110, 144, 135, 163, 129, 143, 160),
    "nomic_bert": (77, 119, 110, 129, 99, 138, 107),
    "gte": (80, 131, 105, 129, 96, 125, 107),
}
"""Most launches of 2 tasks with 4 texts on 2 layers, by method, on the device of the case."""
TRIED: tuple[Family, ...] = ("bert", "deberta-v2", "modernbert", "qwen3")
"""Families of the short form; the cases of all others are slow."""
MOST_COPIES = 9
"""Most copies of the same batches to the device."""


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
def serving(case: Case, config: BackboneConfig | None = None) -> Generator[Backbone]:
    """A server's backbone on a device that is not there. Its kernels did not prove themselves.

    `config` gives it another size.
    """
    plain = on_the_host(case.family)
    with fake_cuda(case.capability):
        backbone = on_fake_device(plain, dtype=case.dtype, config=config)
        yield replace(backbone, ops=ops_for(backbone.config, dtype=case.dtype, device=CUDA))


def proven(backbone: Backbone, case: Case) -> Backbone:
    """The backbone after each of its kernels has proved itself, which takes most of a test."""
    with trusting():
        packed = pack_backbone(backbone)
    assert packed.fast_kernels == case.fast_kernels
    return packed


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
    return random_text(random.Random(seed), num_tokens)


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


MIXED = [
    Case(capability=(7, 5), family="bert", dtype=OTHER_HALF),
    Case(capability=(8, 6), family="modernbert", dtype=OTHER_HALF),
    Case(capability=(9, 0), family="mpnet", dtype=HALF),
    Case(capability=(10, 0), family="roberta", dtype=HALF),
    pytest.param(Case(capability=(12, 0), family="qwen3", dtype=WHOLE), marks=pytest.mark.slow),
]
"""Every choice of kernels; the slow case has the kernels of the first."""


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


TEXTS = [text(length, seed=seed) for seed, length in enumerate((1, 9, 9, 30))]


def device_of(family: Family, method: Method) -> tuple[tuple[int, int], torch.dtype]:
    """The device and the format of the case of this family and method: the cases take turns."""
    turn = len(METHODS) * FAMILIES.index(family) + METHODS.index(method)
    return DEVICES[turn % len(DEVICES)]


@pytest.mark.parametrize("case", MIXED, ids=str)
def test_a_batch_of_all_methods_runs_without_waiting_for_the_device(case: Case) -> None:
    with serving(case) as unproven:
        backbone = proven(unproven, case)
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
ROBERTA_BASE = replace(
    on_the_host("roberta").config,
    hidden_width=768, num_heads=12, intermediate_width=3072,
)  # fmt: skip
MANY = 64
MANY_CEILINGS = [
    (HOPPER, HeadOnly(), 2, MANY, (41, 5)),
    (HOPPER, LORA, 2, MANY, (58, 8)),
    (HOPPER, Bottleneck(size=8), 2, MANY, (102, 8)),
    (HOPPER, TopK(num_layers=1), 2, 1, (104, 12)),
    (AMPERE, LORA, 2, MANY, (66, 8)),
    (AMPERE, Bottleneck(size=64), 12, MANY, (774, 11)),
    (AMPERE, TopK(num_layers=1), 2, 1, (104, 12)),
    (TURING, LORA, 2, MANY, (91, 9)),
    (TURING, TopK(num_layers=1), 2, 1, (126, 13)),
]
"""Most launches and copies of one forward of some texts to 64 tasks, on so many layers of RoBERTa
base. Only the adapters of all twelve layers fill more than one page."""


@pytest.mark.parametrize(
    ("case", "method", "num_layers", "num_texts", "ceiling"),
    MANY_CEILINGS,
    ids=lambda it: str(getattr(it, "kind", it)),
)
def test_many_tasks_take_few_launches(
    case: Case, method: Method, num_layers: int, num_texts: int, ceiling: tuple[int, int]
) -> None:
    chance = random.Random(0)
    texts = [text(chance.randint(16, 48), seed=index) for index in range(num_texts)]
    config = replace(ROBERTA_BASE, num_layers=num_layers)
    with serving(replace(case, family="roberta"), config) as backbone:
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
        with pytest.raises(Exception, match=r"CUDA|NVIDIA|item"):
            BatchCompute(backbone)([row])

    assert set(chosen) == {CUDA}


def run_case(
    family: Family, method: Method, device: tuple[tuple[int, int], torch.dtype]
) -> tuple[Count, Count]:
    """Run 2 tasks, and 4 tasks, with 4 texts each; return the work of both batches."""
    capability, dtype = device
    case = Case(capability=capability, family=family, dtype=dtype)
    with serving(case) as backbone:
        assert backbone.fast_kernels == case.fast_kernels
        tasks = tasks_of_one_form(backbone, method, 2 * FEW_TASKS)
        found = list[Count]()
        for some in (tasks[:FEW_TASKS], tasks):
            rows = [Row(encoding=each, branch=task) for task in some for each in TEXTS]
            logits, count = run(backbone, rows)
            check_logits(rows, logits)
            found.append(count)
    of_two, of_four = found
    if family not in WITH_PAIR_TERMS and not isinstance(method, Full):
        # Tasks of one form share each launch and each copy.
        assert of_four.launches <= of_two.launches, of_four.operators - of_two.operators
        assert of_four.copies <= of_two.copies, of_four.operators - of_two.operators
    return of_two, of_four


@pytest.mark.each
@pytest.mark.parametrize("method", METHODS, ids=lambda it: str(it.kind))
@pytest.mark.parametrize(
    "family", [pytest.param(it, marks=[pytest.mark.slow] * (it not in TRIED)) for it in FAMILIES]
)
def test_a_case_of_each_pair_runs_without_waiting_for_the_device(
    family: Family, method: Method
) -> None:
    count, _ = run_case(family, method, device_of(family, method))

    assert count.launches <= LAUNCHES[family][METHODS.index(method)], count.operators
    assert count.copies <= MOST_COPIES, count.operators


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda it: str(it.kind))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_runs_without_waiting_for_the_device(family: Family, method: Method) -> None:
    for device in DEVICES:
        run_case(family, method, device)
