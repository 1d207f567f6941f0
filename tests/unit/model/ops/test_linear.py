"""Packed weights have the same numbers, bytes and products as plain weights."""

import random

import psutil
import pytest
import torch
from torch import Tensor

from doubles.backbones import random_text
from doubles.tasks import EVERY_FORM
from nunatak_contract.enums import Activation, Pooling
from nunatak_contract.methods import Bottleneck, Full, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    HeadSpec,
    Row,
    build_branch,
    convert_branch,
    forward,
    initial_parameters,
    load_backbone,
    pack_backbone,
)
from nunatak_model.ops.linear import apply_linear, can_pack, num_computed, packed, plain
from nunatak_model.weights import Linear

METHODS: list[Method] = [
    TopK(num_layers=2),
    Bottleneck(size=64),
    Bottleneck(size=512, first_layer=3),
    *EVERY_FORM,
]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Tolerances for values near 1, in float32 and in bfloat16."""

DTYPES = [
    dtype for dtype in (torch.float32, torch.bfloat16) if can_pack(dtype, torch.device("cpu"))
]


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return load_backbone(dtype=request.param)


def weight(name: str = "layers.0.qkv.weight", shape: tuple[int, int] = (512, 384)) -> Tensor:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return packed({name: tensor})[name]


def rows_on(backbone: Backbone) -> list[Row]:
    generator, chance = torch.Generator().manual_seed(7), random.Random(7)

    def branch(method: Method) -> Branch:
        head = HeadSpec(num_labels=4, pooling=Pooling.MEAN)
        spec = BranchSpec(method=method, head=head)
        fresh = initial_parameters(spec, backbone, generator=generator)
        moved = {
            name: tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in fresh.items()
        }
        return convert_branch(build_branch(spec, backbone.config, moved), backbone)

    branches = [branch(method) for method in METHODS]
    return [
        Row(encoding=each, branch=branch)
        for each in (random_text(chance, length) for length in (1, 7, 33))
        for branch in branches
    ]


@pytest.mark.usefixtures("unchecked")
def test_a_packed_backbone_answers_as_the_plain_one(backbone: Backbone) -> None:
    pack = pack_backbone(backbone)
    with torch.inference_mode():
        expected = forward(backbone, rows_on(backbone))
        answers = forward(pack, rows_on(pack))

    assert pack.is_packed
    assert not backbone.is_packed
    worst = max(
        float((one - other).abs().max()) for one, other in zip(expected, answers, strict=True)
    )
    assert worst <= TOLERANCE[backbone.dtype]


def test_packing_keeps_bytes_names_and_digest(backbone: Backbone) -> None:
    pack = pack_backbone(backbone)

    assert pack.num_bytes == backbone.num_bytes
    assert pack.digest == backbone.digest
    assert pack.parameters.keys() == backbone.parameters.keys()
    assert all(
        torch.equal(plain(pack.parameters[name]), tensor)
        for name, tensor in backbone.parameters.items()
    )


def test_a_branch_packs_with_its_backbone_into_as_many_bytes(backbone: Backbone) -> None:
    plain, packs = (
        [row.branch for row in rows_on(each)] for each in (backbone, pack_backbone(backbone))
    )
    assert [it.num_bytes for it in plain] == [it.num_bytes for it in packs]
    assert {branch.spec.method for branch in packs if any_packed(branch)} >= {
        TopK(num_layers=2),
        Bottleneck(size=512, first_layer=3),
        Full(),
    }


def any_packed(branch: Branch) -> bool:
    return any(tensor.is_mkldnn for tensor in branch.parameters.values())


@pytest.mark.skipif(not DTYPES, reason="this build of torch has no packed products")
@pytest.mark.parametrize("activation", [None, *Activation])
@pytest.mark.parametrize("num_tokens", [0, 9, 65])
def test_a_packed_map_with_its_activation_equals_the_plain_one(
    activation: Activation | None, num_tokens: int
) -> None:
    x = torch.randn(num_tokens, 384, generator=torch.Generator().manual_seed(2))
    bias = torch.randn(512, generator=torch.Generator().manual_seed(3))

    answer = apply_linear(x, Linear(weight=weight(), bias=bias), activation=activation)

    expected = apply_linear(x, Linear(weight=plain(weight()), bias=bias), activation=activation)
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=2e-4)


@pytest.mark.skipif(not DTYPES, reason="this build of torch has no packed products")
@pytest.mark.parametrize("layout", ["view", "end", "transposed"])
def test_a_packed_product_reads_nothing_from_the_memory_after_its_tokens(layout: str) -> None:
    tokens = torch.randn(65, 384, generator=torch.Generator().manual_seed(2))
    after = torch.full((0 if layout == "end" else 7, 384), torch.nan)
    whole = torch.cat((tokens, after))
    x = (whole.T.contiguous().T if layout == "transposed" else whole)[:65]
    linear = Linear(weight=weight(), bias=None)

    assert torch.equal(apply_linear(x, linear), apply_linear(tokens.clone(), linear))


def test_few_numbers_of_tokens_are_computed_and_each_with_at_most_an_eighth_more() -> None:
    computed = {it: num_computed(it) for it in range(1, 4097)}

    assert all(it <= more <= it * 9 / 8 for it, more in computed.items())
    assert len({*computed.values()}) <= 80


@pytest.mark.usefixtures("unchecked")
@pytest.mark.skipif(not DTYPES, reason="this build of torch has no packed products")
def test_batches_of_many_sizes_leave_no_memory_behind() -> None:
    linear, process = Linear(weight=weight(), bias=None), psutil.Process()
    apply_linear(torch.zeros(400, 384), linear)
    before = process.memory_full_info().uss

    for num_tokens in range(1, 400):
        apply_linear(torch.zeros(num_tokens, 384), linear)

    assert process.memory_full_info().uss - before < 60e6


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layers.0.qkv.weight", (16, 384)),
        ("head.output.weight", (1024, 384)),
        ("embeddings.word", (1024, 384)),
    ],
)
def test_small_maps_heads_and_tables_stay_plain(name: str, shape: tuple[int, int]) -> None:
    assert not weight(name, shape).is_mkldnn


def test_accelerators_and_other_number_formats_are_not_packed() -> None:
    assert not can_pack(torch.float32, torch.device("meta"))
    assert not can_pack(torch.float16, torch.device("cpu"))
