"""Laws of frozen linear maps in 8-bit integers."""

from collections.abc import Callable, Generator
from time import sleep

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from doubles.backbones import FAMILIES, Family, encoded, save_tiny_backbone, tiny_backbone
from nunatak_contract.methods import TopK
from nunatak_model import (
    Backbone,
    UnsupportedBackboneError,
    load_backbone,
    maths_of,
    pack_backbone,
    quantize_backbone,
    run_trunk,
    without_fast_kernels,
)
from nunatak_model.ops import int8
from nunatak_model.ops.int8 import int8_product, quantized, restored
from nunatak_model.weights import Linear, linear_from

OUT, IN = 24, 16


def quantized_map(*, bias: bool = True, seed: int = 0) -> Linear:
    generator = torch.Generator().manual_seed(seed)
    tensors = {"layers.0.qkv.weight": torch.randn(OUT, IN, generator=generator)}
    if bias:
        tensors["layers.0.qkv.bias"] = torch.randn(OUT, generator=generator)
    return linear_from(quantized(tensors), "layers.0.qkv")


def random_rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, IN, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False])
def test_product_matches_integers_and_their_scales(bias: bool) -> None:  # noqa: FBT001
    linear = quantized_map(bias=bias)
    assert linear.scale is not None
    x = random_rows(5)
    expected = list[Tensor]()
    for row in x:
        scale = row.abs().max() / 127
        integers = (row / scale).round().long()
        sums = (linear.weight.long() * integers).sum(1)
        offset = 0 if linear.bias is None else linear.bias.double()
        expected.append(sums.double() * linear.scale.double() * scale.double() + offset)

    torch.testing.assert_close(int8_product(x, linear).double(), torch.stack(expected))


def test_integers_stand_for_the_weight_to_half_a_step() -> None:
    weight = torch.randn(OUT, IN)
    linear = linear_from(quantized({"layers.0.qkv.weight": weight}), "layers.0.qkv")

    assert linear.scale is not None
    assert linear.weight.dtype is torch.int8
    error = (restored(linear.weight, linear.scale) - weight).abs()
    assert (error <= 0.5001 * linear.scale.unsqueeze(1)).all()
    assert torch.equal(linear.weight.abs().amax(1), torch.full((OUT,), 127, dtype=torch.int8))


def saturated(x: Tensor, weight: Tensor) -> Tensor:
    """Neighbouring products of bytes are added in 16 bits, as by CPUs without VNNI."""
    products = (x.int() + 128).unsqueeze(2) * weight.int()
    pairs = products.unflatten(1, (-1, 2)).sum(2).clamp(-(2**15), 2**15 - 1)
    return (pairs.sum(1) - 128 * weight.int().sum(0)).int()


def slow(x: Tensor, weight: Tensor) -> Tensor:
    """A plain loop."""
    sleep(0.02)
    return x.int() @ weight.int()


@pytest.fixture
def _as_on_a_new_cpu() -> Generator[None]:
    int8.has_integer_product.cache_clear()
    yield
    int8.has_integer_product.cache_clear()


def exact_case() -> tuple[Tensor, Tensor, Tensor]:
    """Rows and a weight of the largest integers, whose partial sums float32 does not hold."""
    generator = torch.Generator().manual_seed(0)
    half = (OUT, 8 * 1024 + 8)
    up, down = (torch.randint(64, 128, half, generator=generator) for _ in range(2))
    weight = torch.cat([up, -down], dim=1)
    x = torch.randint(64, 128, (3, weight.shape[1]), generator=generator)
    x[:, 0] = 127
    return x.float(), weight.to(torch.int8), (x @ weight.t()).float()


def exact_product(x: Tensor, weight: Tensor) -> Tensor:
    return int8_product(x, Linear(weight=weight, bias=None, scale=torch.ones(OUT)))


@pytest.mark.usefixtures("_as_on_a_new_cpu")
@pytest.mark.parametrize("product", [saturated, slow])
def test_sums_are_exact_on_cpus_whose_integer_products_do_not_serve(
    product: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.aten, "_int_mm", product)
    x, weight, expected = exact_case()

    assert not int8.has_integer_product()
    assert torch.equal(exact_product(x, weight), expected)


def test_sums_are_exact_on_this_cpu() -> None:
    x, weight, expected = exact_case()

    assert torch.equal(exact_product(x, weight), expected)


@given(others=st.integers(0, 40), place=st.integers(0, 40), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_bits_of_a_row_depend_on_no_other_row(others: int, place: int, scale: float) -> None:
    linear, row = quantized_map(), random_rows(1)
    rest = random_rows(others, seed=2) * scale
    place = min(place, others)
    batch = torch.cat([rest[:place], row, rest[place:]])

    assert torch.equal(int8_product(batch, linear)[place], int8_product(row, linear)[0])


def test_row_of_zeros_gives_the_bias() -> None:
    linear = quantized_map()
    assert linear.bias is not None

    assert torch.equal(int8_product(torch.zeros(1, IN), linear)[0], linear.bias)


def test_gradient_matches_the_weight_which_the_integers_stand_for() -> None:
    linear = quantized_map()
    assert linear.scale is not None
    x = random_rows(3).requires_grad_()
    upstream = torch.randn(3, OUT)

    (found,) = torch.autograd.grad(int8_product(x, linear), x, upstream)

    torch.testing.assert_close(found, upstream @ restored(linear.weight, linear.scale))


def test_quantized_backbone_is_another_backbone_of_fewer_bytes() -> None:
    plain = tiny_backbone()

    found = quantize_backbone(plain)

    assert found.name == f"{plain.name}+int8"
    assert found.digest != plain.digest
    assert found.digest == quantize_backbone(tiny_backbone()).digest
    assert found.num_parameters == plain.num_parameters
    assert found.num_bytes < 0.36 * plain.num_bytes
    torch.testing.assert_close(
        found.words, plain.words, rtol=0, atol=float(plain.words.abs().max()) / 254
    )
    assert found.is_quantized
    assert not plain.is_quantized


def test_suffix_of_a_source_loads_it_quantized(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = save_tiny_backbone(tmp_path_factory.mktemp("backbones") / "tiny")

    found = load_backbone(f"{folder}+int8")

    assert found.name == "tiny+int8"
    assert found.digest == quantize_backbone(load_backbone(folder)).digest


@pytest.mark.parametrize("prepare", [pack_backbone, quantize_backbone])
def test_only_a_plain_backbone_is_quantized(prepare: Callable[[Backbone], Backbone]) -> None:
    with pytest.raises(UnsupportedBackboneError, match="only a plain backbone on the CPU"):
        quantize_backbone(prepare(tiny_backbone()))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_int8", [True, False], ids=["int8", "floats"])
@pytest.mark.parametrize("family", FAMILIES)
def test_trunk_is_close_to_the_original(
    family: Family, dtype: torch.dtype, *, is_int8: bool
) -> None:
    plain = tiny_backbone(family=family)
    served = tiny_backbone(family=family, dtype=dtype)
    served = quantize_backbone(served) if is_int8 else served
    (encoding,) = plain.tokenizer.encode(["some words to read"], max_length=32)
    exact = run_trunk(plain, [encoding], depth=4).hidden[encoding]

    found = run_trunk(served, [encoding], depth=4).hidden[encoding]

    assert found.dtype is served.dtype is dtype
    error = torch.linalg.vector_norm(found.float() - exact) / torch.linalg.vector_norm(exact)
    assert error < 0.15
    assert (error > 0) == (is_int8 or dtype is torch.bfloat16)


def test_own_layers_start_from_what_the_integers_stand_for() -> None:
    backbone = quantize_backbone(tiny_backbone())
    copies = maths_of(TopK(num_layers=1)).initial_parameters(backbone, torch.Generator())

    name = "layers.3.qkv.weight"
    frozen = backbone.floating(name)
    assert frozen is not None
    assert torch.equal(copies[name], frozen)
    assert copies.keys() == maths_of(TopK(num_layers=1)).parameter_shapes(backbone.config).keys()


def test_packing_leaves_integers_and_lays_out_what_tasks_own() -> None:
    backbone = quantize_backbone(tiny_backbone())

    served = without_fast_kernels(pack_backbone(backbone))

    assert served.is_quantized
    encoding = encoded((2, 7, 8, 3))
    before, after = (
        run_trunk(it, [encoding], depth=4).hidden[encoding] for it in (backbone, served)
    )
    assert torch.equal(before, after)
