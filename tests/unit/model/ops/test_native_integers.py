"""The native product of integers against torch's own, at every level of the CPU."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from doubles.backbones import Family, encoded, tiny_backbone
from doubles.native_ops import DTYPES, EXAMPLES, assert_near, draw
from doubles.tasks import random_branch
from nunatak_contract.enums import Activation, LinearMap
from nunatak_contract.methods import Bottleneck, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Row,
    forward,
    load_backbone,
    pack_backbone,
    quantize_backbone,
    run_trunk,
)
from nunatak_model.ops.int8 import int8_product, packed_integers, quantized
from nunatak_model.ops.linear import activate, apply_linear
from nunatak_model.ops.native import ACTIVATIONS
from nunatak_model.weights import Linear, linear_from

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("native")]


def integer_map(out: int, into: int, *, bias: bool = True) -> Linear:
    tensors = {"layers.0.qkv.weight": draw(out, into, dtype=torch.float32, seed=into)}
    if bias:
        tensors["layers.0.qkv.bias"] = draw(out, dtype=torch.float32, seed=out)
    return linear_from(quantized(tensors), "layers.0.qkv")


def integer_linear(
    x: Tensor, *maps: Linear, ends: Sequence[int] = (), activation: int = 0, level: int = -1
) -> Tensor:
    """Run maps whose integers are not yet packed; by default one map, over all tokens."""
    biases = [it.bias.to(x.dtype) for it in maps if it.bias is not None]
    weights = [packed_integers(it.weight) for it in maps]
    scales = [it.scale for it in maps]
    return torch.ops.nunatak_ops.integer_linear(
        x, weights, scales, biases, ends or [len(x)], activation, level
    )


@EXAMPLES
@given(
    st.integers(0, 140),
    st.integers(1, 40).map(lambda it: 4 * it) | st.sampled_from([64, 192, 768]),
    st.integers(1, 140),
    st.sampled_from(range(len(ACTIVATIONS))),
    DTYPES,
)
def test_products_of_integers_are_torchs_for_every_number_of_tokens_and_width(
    level: int, tokens: int, into: int, out: int, activation: int, dtype: torch.dtype
) -> None:
    linear = integer_map(out, into, bias=out % 2 == 0)
    # Rows of very different sizes, in memory that has more columns.
    x = draw(tokens, into + 4, dtype=torch.float32) * draw(tokens, 1, dtype=torch.float32).exp()
    x = x.to(dtype)[:, :into]

    seen = integer_linear(x, linear, activation=activation, level=level)

    if linear.bias is not None:
        linear = replace(linear, bias=linear.bias.to(dtype).float())
    expected = int8_product(x.float(), linear)
    named = ACTIVATIONS[activation]
    assert_near(seen, expected if named is None else activate(expected, named), dtype)
    assert seen.dtype is dtype


@pytest.mark.parametrize("into", [64, 100, 3072])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_integers_are_exact(level: int, into: int, sign: int) -> None:
    weight = torch.full((33, into), 127, dtype=torch.int8)
    linear = Linear(weight=weight, bias=None, scale=torch.ones(33))
    x = torch.full((18, into), sign * 127.0)

    seen = integer_linear(x, linear, level=level)

    assert torch.equal(seen, torch.full((18, 33), sign * 127.0**2 * into))


def test_bits_of_a_row_of_integers_depend_on_no_other_row(level: int) -> None:
    linear, x = integer_map(70, 192), draw(50, 192, dtype=torch.float32)

    run = partial(integer_linear, activation=ACTIVATIONS.index(Activation.GELU), level=level)

    together = run(x, linear)

    for at in (0, 5, 17, 49):
        assert torch.equal(run(x[at : at + 1], linear)[0], together[at])


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_map_of_one_call_gives_the_bits_of_a_call_of_its_own(
    level: int, dtype: torch.dtype, *, has_bias: bool
) -> None:
    lengths = [1, 140, 0, 31, 6]
    maps = [
        replace(integer_map(70, 192, bias=has_bias), scale=draw(70, dtype=torch.float32, seed=seed))
        for seed in range(len(lengths))
    ]
    maps = [replace(it, weight=it.weight.roll(at)) for at, it in enumerate(maps)]
    x = draw(sum(lengths), 192, dtype=dtype)

    together = integer_linear(x, *maps, ends=list(accumulate(lengths)), level=level)

    for part, own_x, own in zip(
        torch.split(together, lengths), torch.split(x, lengths), maps, strict=True
    ):
        assert torch.equal(part, integer_linear(own_x, own, level=level))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_that_is_no_number_stays_none_and_spoils_no_other(
    level: int, bad: float, activation: Activation | None, dtype: torch.dtype
) -> None:
    number = ACTIVATIONS.index(activation)
    linear, x = integer_map(20, 64), draw(3, 64, dtype=dtype)
    expected = integer_linear(x, linear, activation=number, level=level)
    x[1, 5] = bad

    seen = integer_linear(x, linear, activation=number, level=level)
    plain = int8_product(x.float(), linear)

    assert seen[1].isnan().all()
    assert (plain if activation is None else activate(plain, activation))[1].isnan().all()
    assert torch.equal(seen[::2], expected[::2])


def test_wrong_products_of_integers_are_refused() -> None:
    linear, x = integer_map(20, 64), draw(3, 64, dtype=torch.float32)

    for wrong in (x[:, :60], x.double(), x.t()):
        with pytest.raises(RuntimeError, match="must"):
            integer_linear(wrong, linear)
    with pytest.raises(RuntimeError, match="no activation 9"):
        integer_linear(x, linear, activation=9)
    with pytest.raises(RuntimeError, match="no level 17"):
        integer_linear(x, linear, level=17)
    for ends in ([3], [2, 4], [3, 2], [1, 2, 3]):
        with pytest.raises(RuntimeError, match="expected 2 ends, the last at 3"):
            integer_linear(x, linear, linear, ends=ends)
    with pytest.raises(RuntimeError, match="for 20 outputs"):
        integer_linear(x, linear, integer_map(19, 64), ends=[1, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", "deberta-v2", "mpnet"])
def test_a_quantized_backbone_gets_the_answers_of_torchs_product(
    family: Family, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    plain = quantize_backbone(tiny_backbone(family=family, dtype=dtype))
    served = pack_backbone(plain)
    encoding = encoded(range(5, 40))

    seen, expected = (
        run_trunk(it, [encoding], depth=4).hidden[encoding].float() for it in (served, plain)
    )

    error = (seen - expected).square().sum().sqrt() / expected.square().sum().sqrt()
    assert error < (0.05 if dtype is torch.bfloat16 else 0.005)
    assert "native_integers" in served.fast_kernels
    for name in plain.parameters:
        frozen, restored = plain.floating(name), served.floating(name)
        assert frozen is not None
        assert restored is not None
        assert torch.equal(frozen, restored)
    assert caplog.records == []


@cache
def minilm() -> Backbone:
    return pack_backbone(load_backbone("minilm+int8"))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method",
    [
        TopK(num_layers=2),
        Bottleneck(size=8, first_layer=1),
        Lora(rank=2, first_layer=2, targets=tuple(LinearMap), alpha=16.0),
    ],
    ids=str,
)
def test_an_answer_on_integers_depends_on_no_other_task_of_the_batch(method: Method) -> None:
    served = minilm()
    head, other = random_branch(served, HeadOnly()), random_branch(served, method, seed=1)
    texts = [encoded((5 + (i * j) % 89) for j in range(1, 31)) for i in range(1, 13)]
    rows = [Row(encoding=it, branch=head) for it in texts]

    with torch.inference_mode():
        alone = forward(served, rows)
        mixed = forward(served, [*rows, *(Row(encoding=it, branch=other) for it in texts)])

    # A number that rounds to another integer moves a logit by far more.
    difference = torch.stack(alone) - torch.stack(mixed[: len(rows)])
    assert difference.abs().max() < 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One form in which the product of integers is served."""

    tokens: int
    out: int
    has_bias: bool
    activation: Activation | None
    maps: int


WRONG_PRODUCTS: dict[str, Callable[[Call], bool]] = {
    "always": lambda _: True,
    "bias": lambda it: it.has_bias,
    "no bias": lambda it: not it.has_bias,
    "one token": lambda it: it.tokens == 1,
    "two maps": lambda it: it.maps == 2,
    "five tokens": lambda it: it.tokens == 5,
    "narrow outputs": lambda it: it.out == min(widths[0] for widths in MAPS),
    **{f"activation {name}": lambda it, name=name: it.activation is name for name in ACTIVATIONS},
}
MAPS = [
    it.widths
    for layer in quantize_backbone(tiny_backbone()).layers[:1]
    for it in (layer.qkv, layer.attention_output, layer.feedforward_in, layer.feedforward_out)
]


@pytest.mark.parametrize("name", WRONG_PRODUCTS)
def test_a_product_of_integers_that_is_wrong_in_any_form_is_replaced_with_one_warning(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(
        x: Tensor,
        weights: list[Tensor],
        scales: list[Tensor],
        biases: list[Tensor],
        ends: list[int],
        number: int,
    ) -> Tensor:
        y = right(x, weights, scales, biases, ends, number)
        call = Call(
            tokens=len(x),
            out=len(scales[0]),
            has_bias=bool(biases),
            activation=ACTIVATIONS[number],
            maps=len(weights),
        )
        return y * 1.001 if WRONG_PRODUCTS[name](call) else y

    right = torch.ops.nunatak_ops.integer_linear
    monkeypatch.setattr(torch.ops.nunatak_ops, "integer_linear", spoil)

    served = pack_backbone(quantize_backbone(tiny_backbone()))

    assert "native_integers" not in served.fast_kernels
    assert served.layers[0].qkv.weight.dtype is torch.int8
    (warning,) = [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]
    assert "the native product of integers gives other results" in warning


def test_a_product_of_integers_that_hides_infinity_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = torch.ops.nunatak_ops.integer_linear

    def hide(*arguments: object) -> Tensor:
        return right(*arguments).nan_to_num_()

    monkeypatch.setattr(torch.ops.nunatak_ops, "integer_linear", hide)

    assert "native_integers" not in pack_backbone(quantize_backbone(tiny_backbone())).fast_kernels


def test_the_native_product_of_integers_refuses_gradients() -> None:
    linear = integer_map(20, 64)
    served = replace(linear, weight=packed_integers(linear.weight))

    with pytest.raises(ValueError, match="no gradients"):
        apply_linear(torch.randn(5, 64, requires_grad=True), served)
