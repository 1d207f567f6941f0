import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from doubles.backbones import encoded, tiny_backbone
from doubles.tasks import EVERY_FORM, random_branch
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import Backbone, Branch, Row, TrunkCache, convert_branch, forward
from nunatak_model.ops.attention import Attention

BACKBONE = tiny_backbone()
METHODS: list[Method] = [TopK(num_layers=4), *EVERY_FORM]
ENCODINGS = [encoded(range(5 + seed, 5 + seed + n)) for seed, n in enumerate((1, 2, 9, 9, 30, 64))]
AMPLE = 2**20


def branch_of(
    method: Method,
    seed: int = 0,
    *,
    backbone: Backbone = BACKBONE,
    kind: HeadKind = HeadKind.SEQUENCE_CLASSIFICATION,
) -> Branch:
    branch = random_branch(backbone, method, num_labels=3, seed=seed, kind=kind)
    return convert_branch(branch, backbone)


@cache
def some_branches() -> list[Branch]:
    kinds = [HeadKind.SEQUENCE_CLASSIFICATION, HeadKind.TOKEN_CLASSIFICATION]
    return [branch_of(method, kind=kind) for method in METHODS for kind in kinds]


def assert_same(answers: list[Tensor], expected: list[Tensor]) -> None:
    for answer, wanted in zip(answers, expected, strict=True):
        torch.testing.assert_close(answer, wanted, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.each
@pytest.mark.parametrize("max_bytes", [0, 5_000, AMPLE])
@pytest.mark.parametrize("seed", range(3))
def test_no_cache_changes_an_answer_after_any_requests(seed: int, max_bytes: int) -> None:
    chance = random.Random(seed)
    branches = some_branches()
    cache = TrunkCache(max_bytes=max_bytes)

    with torch.inference_mode():
        for _ in range(8):
            rows = [
                Row(encoding=chance.choice(ENCODINGS), branch=chance.choice(branches))
                for _ in range(chance.randint(1, 12))
            ]
            assert_same(forward(BACKBONE, rows, trunk=cache), forward(BACKBONE, rows))

    assert (cache.stats.hits > 0) == (max_bytes > 0)
    assert (cache.stats.evictions > 0) == (max_bytes == 5_000)


def test_a_stage_without_layers_plans_nothing() -> None:
    planned = list[Sequence[int]]()

    def attention(lengths: Sequence[int], device: torch.device) -> Attention:
        planned.append(lengths)
        return BACKBONE.ops.attention(lengths, device)

    backbone = replace(BACKBONE, ops=replace(BACKBONE.ops, attention=attention))
    rows = [Row(encoding=encoding, branch=branch_of(HeadOnly())) for encoding in ENCODINGS]
    cache = TrunkCache(max_bytes=AMPLE)

    with torch.inference_mode():
        missed = forward(backbone, rows, trunk=cache)
        assert planned
        planned.clear()
        hit = forward(backbone, rows, trunk=cache)

    assert not planned
    assert all(map(torch.equal, hit, missed))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.each
@pytest.mark.parametrize(
    "backbone",
    [BACKBONE, tiny_backbone(family="modernbert"), tiny_backbone(family="qwen3")],
    ids=["bert", "modernbert", "qwen3"],
)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_hit_equals_its_miss_bit_by_bit_where_the_branch_has_the_same_shapes(
    method: Method, backbone: Backbone
) -> None:
    branch = branch_of(method, backbone=backbone)
    rows = [Row(encoding=encoding, branch=branch) for encoding in ENCODINGS]
    cache = TrunkCache(max_bytes=AMPLE)

    with torch.inference_mode():
        missed = forward(backbone, rows, trunk=cache)
        hit = forward(backbone, rows, trunk=cache)

    assert cache.stats.hits == (len(rows) if branch.split_depth else 0)
    assert all(map(torch.equal, hit, missed))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(tiny_backbone(seed=1), id="other-weights"),
        pytest.param(tiny_backbone(dtype=torch.bfloat16), id="other-dtype"),
    ],
)
def test_backbones_and_dtypes_that_differ_share_one_cache_and_no_state(other: Backbone) -> None:
    cache = TrunkCache(max_bytes=AMPLE)

    with torch.inference_mode():
        for backbone in (BACKBONE, other):
            branch = branch_of(TopK(num_layers=2), backbone=backbone)
            rows = [Row(encoding=encoding, branch=branch) for encoding in ENCODINGS]
            answers = forward(backbone, rows, trunk=cache)
            assert all(map(torch.equal, answers, forward(backbone, rows)))

    assert cache.stats.hits == 0


def test_what_inference_cached_can_be_trained_on() -> None:
    cache, branch = TrunkCache(max_bytes=AMPLE), branch_of(TopK(num_layers=2))
    rows = [Row(encoding=encoding, branch=branch) for encoding in ENCODINGS]
    for tensor in branch.parameters.values():
        tensor.requires_grad_()

    def gradients(trunk: TrunkCache | None) -> tuple[Tensor, ...]:
        loss = torch.stack(forward(BACKBONE, rows, trunk=trunk)).square().sum()
        return torch.autograd.grad(loss, list(branch.parameters.values()))

    with torch.inference_mode():
        forward(BACKBONE, rows, trunk=cache)

    torch.testing.assert_close(gradients(cache), gradients(None), atol=1e-4, rtol=1e-4)
    assert cache.stats.hits == len(ENCODINGS)
