"""A mixed batch on the kernels of a GPU, against the same batch with each task alone."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from doubles.backbones import BYTES, Family, random_text, tiny_backbone
from doubles.serving_kernels import banks_of, with_gpu_kernels
from doubles.tasks import EVERY_FORM, random_branch
from nunatak_contract.enums import AdapterInput, HeadKind, Norms
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model import Backbone, Branch, Encoding, Row, convert_branch, forward
from nunatak_model.ops import attention, grouped
from nunatak_model.ops.choice import PLAIN_OPS
from nunatak_model.ops.grouped import (
    ALIGNMENT_BYTES,
    FIRST_SLOTS,
    MAX_SLOTS,
    PlanGroups,
    kernel_groups,
    padded_groups,
)

METHODS: list[Method] = [
    Lora(rank=3, alpha=5.0, targets=QUERY_AND_VALUE),
    Lora(rank=64, targets=QUERY_AND_VALUE, alpha=4.0),
    *EVERY_FORM,
]
LORA = Lora(rank=4, alpha=16.0, targets=QUERY_AND_VALUE)
FROZEN_NORMS = Bottleneck(size=5, reads=AdapterInput.NORMED_SUM, norms=Norms.FROZEN)
KINDS = list(HeadKind)
PRODUCTS = {"_grouped_mm", "linear", "mm", "addmm", "addmm_", "bmm", "baddbmm"}
COPIES = 3
"""Versions of each form, so that each is grouped."""


def stored_branch(backbone: Backbone, method: Method, seed: int) -> Branch:
    """A branch in float32, of each kind in turn."""
    kind = KINDS[seed % len(KINDS)]
    return random_branch(backbone, method, num_labels=2 + seed % 5, seed=seed, kind=kind)


def random_encodings(seed: int) -> list[Encoding]:
    chance = random.Random(seed)
    return [random_text(chance, n) for n in (1, 2, 9, 9, 30)]


def mixed_questions(methods: list[Method], seed: int) -> list[tuple[int, Encoding]]:
    """Every version asked at least once, in a random order."""
    chance, encodings = random.Random(seed), random_encodings(seed)
    questions = [(index, chance.choice(encodings)) for index in range(COPIES * len(methods))]
    questions += chance.choices(questions, k=8)
    chance.shuffle(questions)
    return questions


def answers(
    backbone: Backbone, branches: list[Branch], questions: list[tuple[int, Encoding]]
) -> list[Tensor]:
    rows = [Row(encoding=encoding, branch=branches[index]) for index, encoding in questions]
    with torch.inference_mode():
        return forward(backbone, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Versions of a backbone, questions, and the answer of each version alone."""

    backbone: Backbone
    stored: list[Branch]
    questions: list[tuple[int, Encoding]]
    answers: list[Tensor]


@cache
def answered_alone(family: Family) -> Alone:
    plain = tiny_backbone(family=family)
    methods = METHODS if family in BYTES else [*METHODS, FROZEN_NORMS]
    stored = [
        stored_branch(plain, methods[index // COPIES], index)
        for index in range(COPIES * len(methods))
    ]
    questions = mixed_questions(methods, seed=1)
    return Alone(
        backbone=plain,
        stored=stored,
        questions=questions,
        answers=answers(plain, stored, questions),
    )


GROUPS: dict[str, PlanGroups] = {"kernel": kernel_groups, "padded": padded_groups}
PAGES = {
    f"{name}-{size}": (groups, page_bytes)
    for name, groups in GROUPS.items()
    for size, page_bytes in {"lone": 1, "some": 20_000, "all": 2**28}.items()
}


@pytest.fixture(params=GROUPS.values(), ids=[*GROUPS])
def groups(request: pytest.FixtureRequest) -> PlanGroups:
    return request.param


@pytest.mark.each
@pytest.mark.parametrize("form", PAGES)
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "llama", "qwen3", "gte"])
def test_grouped_tasks_answer_as_each_by_itself(family: Family, form: str) -> None:
    """Pages of one slot, of some, of all: the answers are the same for every grouping."""
    lone, (groups, page_bytes) = answered_alone(family), PAGES[form]
    served = with_gpu_kernels(lone.backbone, groups=groups, page_bytes=page_bytes)

    seen = answers(served, [convert_branch(it, served) for it in lone.stored], lone.questions)

    for (index, _), one, other in zip(lone.questions, seen, lone.answers, strict=True):
        assert one.shape == other.shape
        method = str(lone.stored[index].spec.method)
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4, msg=method)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_many_small_blocks_answer_as_few_large_ones(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If launches were cheap, every skew and every gap would divide the products."""
    lone = answered_alone(family)
    served = with_gpu_kernels(lone.backbone, groups=padded_groups)
    branches = [convert_branch(it, served) for it in lone.stored]
    few = answers(served, branches, lone.questions)
    for module in (attention, grouped):
        monkeypatch.setattr(module, "LAUNCH_CELLS", 3)
    monkeypatch.setattr(grouped, "SLOT_CELLS", 1)

    many = answers(served, branches, lone.questions)

    for one, other in zip(many, few, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)


@cache
def answered_alone_in_bfloat16() -> list[Tensor]:
    lone, plain = answered_alone("bert"), tiny_backbone(dtype=torch.bfloat16)
    return answers(plain, [convert_branch(it, plain) for it in lone.stored], lone.questions)


@pytest.mark.usefixtures("unchecked")
def test_grouped_tasks_answer_in_bfloat16_as_near_as_each_by_itself(groups: PlanGroups) -> None:
    lone, looped = answered_alone("bert"), answered_alone_in_bfloat16()
    served = with_gpu_kernels(tiny_backbone(dtype=torch.bfloat16), groups=groups)
    grouped = answers(served, [convert_branch(it, served) for it in lone.stored], lone.questions)

    error = torch.cat([(a - b).flatten() for a, b in zip(grouped, lone.answers, strict=True)])
    usual = torch.cat([(a - b).flatten() for a, b in zip(looped, lone.answers, strict=True)])
    assert error.square().mean().sqrt() <= 1.5 * usual.square().mean().sqrt()


@pytest.mark.parametrize("method", METHODS[:-1], ids=str)
def test_a_version_in_slots_takes_no_more_than_its_padded_parameters(method: Method) -> None:
    served = with_gpu_kernels(tiny_backbone())
    stored = stored_branch(served, method, 0)
    branch, alignment = convert_branch(stored, served), ALIGNMENT_BYTES // 4

    assert branch.num_bytes == sum(4 * tensor.numel() for tensor in branch.parameters.values())
    for name, tensor in branch.parameters.items():
        sizes = zip(tensor.shape, stored.parameters[name].shape, strict=True)
        assert all(size - alignment < before <= size for size, before in sizes)


def test_small_ranks_take_no_more_next_to_a_large_one() -> None:
    """Each rank has pages of its own, so nothing is padded to the largest of a batch."""
    plain = tiny_backbone()
    ranks = (4, 8, 16, 256)
    stored = [
        stored_branch(plain, Lora(rank=rank, alpha=8.0, targets=QUERY_AND_VALUE), 4 * seed)
        for seed, rank in enumerate(ranks)
    ]
    alone = list[int]()
    for branch in stored:
        served = with_gpu_kernels(plain)
        held = convert_branch(branch, served)
        alone.append(held.num_bytes)
    together = with_gpu_kernels(plain)

    branches = [convert_branch(branch, together) for branch in stored]

    assert [branch.num_bytes for branch in branches] == alone
    answers(together, branches, [(index, random_encodings(0)[0]) for index in range(len(ranks))])
    assert banks_of(together).num_bytes() <= MAX_SLOTS * sum(alone)


@pytest.mark.parametrize(
    ("method", "smaller"),
    [
        (LORA, LORA.model_copy(update={"rank": 1})),
        (Ia3(), Ia3()),
        (Bottleneck(size=4), Bottleneck(size=1)),
        (TopK(num_layers=1), TopK(num_layers=1)),
    ],
    ids=str,
)
def test_a_slot_that_is_reused_holds_the_new_version_only(method: Method, smaller: Method) -> None:
    plain = tiny_backbone()
    served = with_gpu_kernels(plain)
    (encoding, *_) = random_encodings(0)
    gone = convert_branch(stored_branch(plain, method, 4), served)
    stays = convert_branch(stored_branch(plain, method, 8), served)
    assert gone.slots is not None
    assert gone.slots.layers is not None
    place = gone.slots.layers.place
    del gone

    stored = stored_branch(plain, smaller, 12)
    new = convert_branch(stored, served)

    assert new.slots is not None
    assert new.slots.layers is not None
    assert new.slots.layers.place == place
    questions = [(0, encoding), (1, encoding)]
    seen = answers(served, [new, stays], questions)
    expected = answers(plain, [stored, stored_branch(plain, method, 8)], questions)
    for one, other in zip(seen, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method",
    [
        Lora(rank=8, alpha=16.0, targets=QUERY_AND_VALUE),
        Ia3(),
        Bottleneck(size=4),
        TopK(num_layers=2),
        HeadOnly(),
    ],
    ids=str,
)
def test_more_tasks_of_a_page_take_no_more_products(method: Method, groups: PlanGroups) -> None:
    plain = tiny_backbone()
    served = with_gpu_kernels(plain, groups=groups)
    stored = [stored_branch(plain, method, 4 * seed) for seed in range(FIRST_SLOTS)]
    branches = [convert_branch(it, served) for it in stored]
    (encoding, *_) = random_encodings(0)

    counts = [num_products(served, branches[:count], encoding) for count in (2, FIRST_SLOTS)]

    assert counts[0] == counts[1] > 0


class Products(TorchDispatchMode):
    """Counts matrix products, grouped or not."""

    num = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.num += str(func).split(".")[1] in PRODUCTS
        return func(*args, **(kwargs or {}))


def num_products(backbone: Backbone, branches: list[Branch], encoding: Encoding) -> int:
    """Matrix products of one forward."""
    rows = [Row(encoding=encoding, branch=branch) for branch in branches]
    with torch.inference_mode(), Products() as products:
        forward(backbone, rows)
    return products.num


@pytest.mark.usefixtures("unchecked")
def test_versions_in_slots_answer_without_groups_too() -> None:
    lone = answered_alone("bert")
    served = with_gpu_kernels(lone.backbone)
    branches = [convert_branch(it, served) for it in lone.stored]

    seen = answers(replace(served, ops=PLAIN_OPS), branches, lone.questions)

    for one, other in zip(seen, lone.answers, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)


def test_evicted_versions_leave_nothing_behind() -> None:
    served = with_gpu_kernels(tiny_backbone())
    branches = [
        convert_branch(stored_branch(served, method, seed), served)
        for seed, method in enumerate(METHODS)
    ]
    assert banks_of(served).num_bytes() >= sum(branch.num_bytes for branch in branches[:-1])

    branches.clear()

    assert banks_of(served).num_bytes() == 0
