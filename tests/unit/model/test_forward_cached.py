import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.tasks import EVERY_FORM, random_branch
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    Encoding,
    Row,
    TrunkCache,
    TrunkSource,
    convert_branch,
    forward,
    run_trunk,
    trunk_source,
)
from nunatak_model.ops.attention import Attention

BACKBONE = tiny_backbone()
METHODS: list[Method] = [TopK(num_layers=4), *EVERY_FORM]
ENCODINGS = [
    Encoding(token_ids=tuple(range(5 + seed, 5 + seed + n)), type_ids=(0,) * n)
    for seed, n in enumerate((1, 2, 9, 9, 30, 64))
]
AMPLE = 2**20


class RecordingStates:
    """Holds given states, and remembers reads and offers."""

    def __init__(self) -> None:
        self.held: dict[tuple[TrunkSource, int], Tensor] = {}
        self.was_read: list[tuple[tuple[int, ...], int]] = []
        self.was_offered: list[tuple[tuple[int, ...], int]] = []

    def hold(self, encoding: Encoding, *, depth: int) -> None:
        state = run_trunk(BACKBONE, [encoding], depth=depth).hidden[encoding]
        self.held[trunk_source(BACKBONE, encoding), depth] = state

    def depths(self, source: TrunkSource) -> list[int]:
        return [depth for held, depth in self.held if held == source]

    def read(self, source: TrunkSource, depth: int) -> Tensor:
        self.was_read.append((source.encoding.token_ids, depth))
        return self.held[source, depth]

    def offer(self, source: TrunkSource, depth: int, state: Tensor) -> None:
        assert state.shape[0] == len(source.encoding.token_ids)
        self.was_offered.append((source.encoding.token_ids, depth))


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
    "backbone", [BACKBONE, tiny_backbone(family="modernbert")], ids=["bert", "modernbert"]
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


def test_each_input_enters_at_its_own_depth() -> None:
    states = RecordingStates()
    both, deep, unknown, _, _, _ = ENCODINGS
    states.hold(both, depth=1)
    states.hold(both, depth=3)
    states.hold(deep, depth=2)
    at_1, at_3, at_4 = (
        branch_of(it) for it in (TopK(num_layers=3), TopK(num_layers=1), HeadOnly())
    )
    pairs = [(both, at_1), (both, at_3), (deep, at_3), (deep, at_4), (unknown, at_1)]
    rows = [Row(encoding=encoding, branch=branch) for encoding, branch in pairs]

    with torch.inference_mode():
        answers = forward(BACKBONE, rows, trunk=states)
        assert_same(answers, forward(BACKBONE, rows))

    assert sorted(states.was_read) == [
        (both.token_ids, 1),
        (both.token_ids, 3),
        (deep.token_ids, 2),
    ]
    assert sorted(states.was_offered) == [
        (deep.token_ids, 3),
        (deep.token_ids, 4),
        (unknown.token_ids, 1),
    ]


@pytest.mark.parametrize(
    "method",
    [Full(), Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)],
    ids=["full", "lora-from-layer-0"],
)
def test_tasks_without_a_trunk_of_layers_leave_the_cache_alone(method: Method) -> None:
    states = RecordingStates()

    with torch.inference_mode():
        forward(BACKBONE, [Row(encoding=ENCODINGS[2], branch=branch_of(method))], trunk=states)

    assert (states.was_read, states.was_offered) == ([], [])


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
