"""The native operators against torch's own, at every level of the CPU."""

import logging
import random
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from doubles.backbones import Family, tiny_backbone
from doubles.native_ops import native_operators
from doubles.tasks import random_branch
from nunatak_contract.enums import Activation, AdapterInput, LinearMap, Norms
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    Encoding,
    Row,
    convert_branch,
    forward,
    pack_backbone,
    quantize_backbone,
    run_trunk,
)
from nunatak_model.backbone import without_fast_kernels
from nunatak_model.ops.attention import RunAttention, attention_by_runs
from nunatak_model.ops.int8 import int8_product, packed_integers, quantized
from nunatak_model.ops.linear import activate, apply_linear
from nunatak_model.ops.native import (
    ACTIVATIONS,
    LONGEST_ROW,
    has_native_operators,
    laid_by_columns,
    native_attention,
)
from nunatak_model.weights import Linear, linear_from

pytestmark = pytest.mark.timeout(600)
CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
NAMES = ("native_attention", "native_low_rank", "native_adapters", "native_norms")
EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SPREADS = st.lists(st.integers(0, 60), min_size=1, max_size=6)
DTYPES = st.sampled_from(list(TOLERANCES))
WIDTHS = st.integers(1, 70)


@pytest.fixture(scope="module", autouse=True)
def _native() -> Generator[None]:
    with native_operators():
        assert has_native_operators()
        yield


LEVELS = ("portable", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "amx")


@pytest.fixture(params=range(len(LEVELS)), ids=LEVELS)
def level(request: pytest.FixtureRequest) -> int:
    if request.param not in torch.ops.nunatak_ops.levels():
        pytest.skip("this CPU has no such level")
    return request.param


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def factor(out: int, into: int, *, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return laid_by_columns(draw(out, into, dtype=dtype, seed=seed).div(into**0.5))


def spans(sizes: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(sizes, initial=0)))


def attended(qkv: Tensor, lengths: list[int], heads: int, shared: int, **options: int) -> Tensor:
    left, right = options.get("left", -1), options.get("right", -1)
    all_heads = heads + 2 * shared
    width = qkv.shape[1] // all_heads
    parts = torch.split(qkv.view(len(qkv), all_heads, width), [heads, shared, shared], dim=1)
    bounds = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32)
    scale, level = width**-0.5, options.get("level", -1)
    found = torch.ops.nunatak_ops.attention(*parts, bounds, left, right, scale, level)
    return found.flatten(1)


def assert_near(seen: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(seen.float(), expected.float(), atol=tolerance, rtol=tolerance)


@EXAMPLES
@given(SPREADS, st.sampled_from([(1, 1), (4, 4), (6, 2)]), WIDTHS, DTYPES, st.integers(-1, 40))
def test_attention_is_torchs_for_every_length_width_and_window(
    level: int,
    lengths: list[int],
    heads: tuple[int, int],
    width: int,
    dtype: torch.dtype,
    reach: int,
) -> None:
    num_heads, shared = heads
    qkv = draw(sum(lengths), (num_heads + 2 * shared) * width, dtype=dtype)

    seen = attended(qkv, lengths, *heads, left=reach, right=reach, level=level)

    plan = attention_by_runs([length for length in lengths if length], CPU)
    plan = plan if reach < 0 else plan.narrow(reach)
    if len(qkv):
        expected = plan(qkv.float(), num_heads=num_heads, num_key_heads=shared, dropout=0.0)
        assert_near(seen, expected, dtype)
    assert seen.shape == (len(qkv), num_heads * width)


@pytest.mark.parametrize("length", [47, 48, 49, 191, 192, 193, 256])
def test_causal_attention_is_torchs_at_the_edges_of_blocks(level: int, length: int) -> None:
    qkv = draw(length, 3 * 2 * 20, dtype=torch.float32)

    seen = attended(qkv, [length], 2, 2, right=0, level=level)

    expected = attention_by_runs([length], CPU).causal()(qkv, num_heads=2, dropout=0.0)
    assert_near(seen, expected, torch.float32)


@EXAMPLES
@given(SPREADS, WIDTHS, st.integers(1, 40), WIDTHS, DTYPES)
def test_low_rank_updates_are_torchs_for_every_task_width_and_rank(
    level: int, sizes: list[int], into: int, rank: int, out: int, dtype: torch.dtype
) -> None:
    x = draw(sum(sizes), into, dtype=dtype)
    seen = draw(sum(sizes), 2 * out, dtype=dtype, seed=1)
    expected, pieces = seen.float(), spans(sizes)
    downs = [factor(rank, into, dtype=dtype, seed=task) for task in range(len(sizes))]
    ups = [factor(out, rank, dtype=dtype, seed=task) for task in range(len(sizes))]
    columns = [task % 2 * out for task in range(len(sizes))]
    for (begin, end), down, up, column in zip(pieces, downs, ups, columns, strict=True):
        update = x[begin:end].float() @ down.float().t() @ up.float().t()
        expected[begin:end, column : column + out] += 0.5 * update

    torch.ops.nunatak_ops.low_rank_(
        seen, x, downs, ups, [it for it, _ in pieces], [it for _, it in pieces], columns,
        [0.5] * len(sizes), level,
    )  # fmt: skip

    assert_near(seen, expected, dtype)


@EXAMPLES
@given(SPREADS, WIDTHS, WIDTHS, st.sampled_from(list(Activation)), DTYPES)
def test_adapters_are_torchs_for_every_activation_and_size(
    level: int, sizes: list[int], width: int, size: int, activation: Activation, dtype: torch.dtype
) -> None:
    x, seen = draw(sum(sizes), width, dtype=dtype), draw(sum(sizes), width, dtype=dtype, seed=1)
    tasks, pieces, expected = range(len(sizes)), spans(sizes), seen.float()
    downs = [factor(size, width, dtype=dtype, seed=task) for task in tasks]
    ups = [factor(width, size, dtype=dtype, seed=task) for task in tasks]
    down_biases = [draw(size, dtype=dtype, seed=task) for task in tasks]
    up_biases = [draw(width, dtype=dtype, seed=task) for task in tasks]
    for task, (begin, end) in enumerate(pieces):
        inner = functional.linear(
            x[begin:end].float(), downs[task].float(), down_biases[task].float()
        )
        inner = activate(inner, activation)
        expected[begin:end] += functional.linear(inner, ups[task].float(), up_biases[task].float())

    torch.ops.nunatak_ops.adapters_(
        seen, x, downs, down_biases, ups, up_biases, [it for it, _ in pieces],
        [it for _, it in pieces], ACTIVATIONS.index(activation), level,
    )  # fmt: skip

    assert_near(seen, expected, dtype)


@EXAMPLES
@given(SPREADS, WIDTHS, DTYPES)
def test_norms_are_torchs_for_every_task_and_width(
    level: int, sizes: list[int], width: int, dtype: torch.dtype
) -> None:
    x = draw(sum(sizes), width, dtype=dtype)
    gains = [draw(width, dtype=dtype, seed=task) for task in range(len(sizes))]
    ends = [end for _, end in spans(sizes)]

    seen = torch.ops.nunatak_ops.layer_norms(x, gains, gains[::-1], ends, 1e-5, level)

    parts = [
        functional.layer_norm(part.float(), (width,), gain.float(), offset.float(), 1e-5)
        for part, gain, offset in zip(torch.split(x, sizes), gains, gains[::-1], strict=True)
    ]
    assert_near(seen, torch.cat(parts), dtype)


def test_a_row_has_the_same_bits_whatever_its_neighbours_and_the_threads(level: int) -> None:
    lengths, width = [40, 3, 17, 100], 3 * 4 * 24
    qkv = draw(sum(lengths), width, dtype=torch.float32)
    together = attended(qkv, lengths, 4, 4, level=level)
    alone = [attended(row, [len(row)], 4, 4, level=level) for row in torch.split(qkv, lengths)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        threaded = attended(qkv, lengths, 4, 4, level=level)
    finally:
        torch.set_num_threads(before)

    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(together, threaded)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_numbers_that_overflow_stay_in_their_row(level: int, bad: float) -> None:
    lengths = [9, 20, 5]
    qkv = draw(sum(lengths), 3 * 2 * 8, dtype=torch.float32)
    expected = attended(qkv, lengths, 2, 2, level=level)
    spoilt = qkv.clone()
    spoilt[9:29] = bad

    seen = attended(spoilt, lengths, 2, 2, level=level)

    assert torch.equal(seen[:9], expected[:9])
    assert torch.equal(seen[29:], expected[29:])
    assert not torch.isfinite(seen[9:29]).all() or bad == 3e38


def updated(x: Tensor, *, out: int = 8, end: int = 4, column: int = 0) -> None:
    down, up = factor(2, 8, dtype=x.dtype), factor(out, 2, dtype=x.dtype)
    torch.ops.nunatak_ops.low_rank_(x, x.clone(), [down], [up], [0], [end], [column], [1.0])


def updated_by_rows(x: Tensor) -> None:
    down, up = draw(2, 8, dtype=x.dtype), factor(8, 2, dtype=x.dtype)
    torch.ops.nunatak_ops.low_rank_(x, x.clone(), [down], [up], [0], [4], [0], [1.0])


def normalised(x: Tensor, *, gain: int = 8, end: int = 4, level: int = -1) -> None:
    torch.ops.nunatak_ops.layer_norms(x, [x[0, :gain]], [x[0]], [end], 1e-5, level)


MISFITS: dict[str, Callable[[Tensor], object]] = {
    "out": lambda x: updated(x, out=9),
    "tokens": lambda x: updated(x, end=5),
    "columns": lambda x: updated(x, column=1),
    "layout": updated_by_rows,
    "dtype": lambda x: updated(x.double()),
    "ends": lambda x: normalised(x, end=3),
    "gain": lambda x: normalised(x, gain=4),
    "level": lambda x: normalised(x, level=7),
    "bounds": lambda x: attended(x.repeat(1, 3), [3], 2, 2),
    "order": lambda x: attended(x.repeat(1, 3), [5, -1], 2, 2),
}


@pytest.mark.parametrize("name", MISFITS)
def test_operands_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError):
        MISFITS[name](draw(4, 8, dtype=torch.float32))


METHODS: list[Method] = [
    HeadOnly(),
    TopK(num_layers=2),
    Ia3(),
    Lora(rank=3, alpha=6.0, targets=QUERY_AND_VALUE),
    Lora(rank=4, alpha=8.0, first_layer=2, targets=tuple(LinearMap)),
    Bottleneck(size=5),
    Bottleneck(size=8, activation=Activation.GELU, first_layer=1),
    Bottleneck(size=4, norms=Norms.FROZEN),
]


def branch(method: Method, backbone: Backbone, *, seed: int) -> Branch:
    return random_branch(backbone, method, num_labels=3, seed=seed)


def distance(seen: list[Tensor], expected: list[Tensor]) -> float:
    return float((torch.stack(seen).float() - torch.stack(expected).float()).abs().max())


def integer_map(out: int, into: int, *, bias: bool = True) -> Linear:
    tensors = {"layers.0.qkv.weight": draw(out, into, dtype=torch.float32, seed=into)}
    if bias:
        tensors["layers.0.qkv.bias"] = draw(out, dtype=torch.float32, seed=out)
    return linear_from(quantized(tensors), "layers.0.qkv")


def integer_linear(
    x: Tensor,
    *maps: Linear,
    ends: Sequence[int] = (),
    activation: int = 0,
    level: int = -1,
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
    encoding = Encoding(token_ids=tuple(range(5, 40)), type_ids=(0,) * 35)

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", "deberta-v2", "mpnet"])
def test_a_mixed_batch_gets_the_answers_of_torchs_operations(
    family: Family, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    plain = tiny_backbone(family=family, dtype=dtype)
    served = pack_backbone(plain)
    methods = list(METHODS)
    if family in ("bert", "mpnet"):
        reads = AdapterInput.NORMED_SUM
        methods.append(Bottleneck(size=4, norms=Norms.FROZEN, reads=reads))
    chance = random.Random(0)
    encodings = [
        Encoding(
            token_ids=tuple(chance.randint(5, 99) for _ in range(length)), type_ids=(0,) * length
        )
        for length in (1, 3, 8, 21, 40)
    ]
    stored = [branch(method, plain, seed=seed) for seed, method in enumerate([*methods, *methods])]

    def answers(backbone: Backbone, layout_of: Backbone) -> list[Tensor]:
        branches = [convert_branch(it, layout_of) for it in stored]
        rows = [Row(encoding=it, branch=own) for own in branches for it in encodings]
        with torch.inference_mode():
            return forward(backbone, rows)

    alone = tiny_backbone(family=family)
    exact, expected = answers(alone, alone), answers(plain, plain)
    # Rounding in bfloat16 moves the answers of torch's own operations, too.
    allowed = 1e-4 + 2 * distance(expected, exact)

    assert distance(answers(served, served), exact) <= allowed
    assert distance(answers(without_fast_kernels(served), served), exact) <= allowed
    assert set(served.ops.fast_kernels()) >= set(NAMES[1:])
    assert ("native_attention" in served.fast_kernels) == (not plain.config.has_pair_terms)
    assert caplog.records == []


def test_a_wrong_operator_is_replaced_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(*arguments: object) -> Tensor:
        return right(*arguments) * 1.01

    right = torch.ops.nunatak_ops.layer_norms
    monkeypatch.setattr(torch.ops.nunatak_ops, "layer_norms", spoil)

    served = pack_backbone(tiny_backbone())

    assert served.ops.fast_kernels() == NAMES[:3]
    (warning,) = [it.getMessage() for it in caplog.records if it.levelno == logging.WARNING]
    assert "the native norm gives other results than torch's own operations" in warning


def test_a_batch_with_a_long_row_attends_by_runs() -> None:
    assert isinstance(native_attention([3, LONGEST_ROW + 1], CPU), RunAttention)


def test_native_attention_refuses_gradients() -> None:
    qkv = torch.randn(5, 24, requires_grad=True)

    with pytest.raises(ValueError, match="no gradients"):
        native_attention([5], CPU)(qkv, num_heads=2, dropout=0.0)


def test_a_package_that_does_not_load_is_left_alone_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = tmp_path / "nunatak_ops"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('undefined symbol')")
    monkeypatch.delitem(sys.modules, "nunatak_ops", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType]

    assert not has_native_operators()

    (warning,) = [it.getMessage() for it in caplog.records]
    assert "nunatak-ops does not load (undefined symbol)" in warning
