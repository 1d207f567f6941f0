"""The native operators against torch's own, at every level of the CPU."""

import logging
import random
import sys
from collections.abc import Callable
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from doubles.backbones import Family, random_text, tiny_backbone
from doubles.native_ops import DTYPES, EXAMPLES, assert_near, draw
from doubles.tasks import random_branch
from nunatak_contract.enums import Activation, AdapterInput, LinearMap, Norms
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model import Backbone, Branch, Row, convert_branch, forward, pack_backbone
from nunatak_model.backbone import without_fast_kernels
from nunatak_model.ops import native
from nunatak_model.ops.attention import RunAttention, attention_by_runs
from nunatak_model.ops.linear import activate
from nunatak_model.ops.native import (
    ACTIVATIONS,
    LONGEST_ROW,
    has_native_operators,
    laid_by_columns,
    native_attention,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("native")]
CPU = torch.device("cpu")
NAMES = ("native_attention", "native_low_rank", "native_adapters", "native_norms")
SPREADS = st.lists(st.integers(0, 60), min_size=1, max_size=6)
WIDTHS = st.integers(1, 70)


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


@pytest.mark.parametrize("activation", [it for it in Activation if it.value.startswith("gelu")])
@pytest.mark.parametrize("x", [5.0, 11.0, 88.0, 1e4, 1e15, 3e37])
def test_gelu_of_a_huge_number_is_the_number_or_zero(
    level: int, activation: Activation, x: float
) -> None:
    rows = torch.tensor([[x], [-x]])
    seen, one = torch.zeros(2, 1), laid_by_columns(torch.ones(1, 1))
    none = [torch.zeros(1)]

    torch.ops.nunatak_ops.adapters_(
        seen, rows, [one], none, [one], none, [0], [2], ACTIVATIONS.index(activation), level
    )

    for found in (seen, activate(rows, activation)):
        torch.testing.assert_close(found, torch.tensor([[x], [0.0]]), rtol=1e-6, atol=2e-6)


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


@cache
def stored_branches(family: Family) -> list[Branch]:
    """Two versions of each method."""
    plain, methods = tiny_backbone(family=family), list(METHODS)
    if family in ("bert", "mpnet"):
        reads = AdapterInput.NORMED_SUM
        methods.append(Bottleneck(size=4, norms=Norms.FROZEN, reads=reads))
    return [branch(method, plain, seed=seed) for seed, method in enumerate([*methods, *methods])]


def mixed_answers(family: Family, backbone: Backbone, layout_of: Backbone) -> list[Tensor]:
    chance = random.Random(0)
    encodings = [random_text(chance, length) for length in (1, 3, 8, 21, 40)]
    branches = [convert_branch(it, layout_of) for it in stored_branches(family)]
    rows = [Row(encoding=it, branch=own) for own in branches for it in encodings]
    with torch.inference_mode():
        return forward(backbone, rows)


@cache
def plain_answers(family: Family, dtype: torch.dtype) -> list[Tensor]:
    """The answers by torch's own operations."""
    plain = tiny_backbone(family=family, dtype=dtype)
    return mixed_answers(family, plain, plain)


@pytest.mark.each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3", "deberta-v2", "mpnet"])
def test_a_mixed_batch_gets_the_answers_of_torchs_operations(
    family: Family,
    dtype: torch.dtype,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    if family != "bert":
        request.getfixturevalue("unchecked")
    plain = tiny_backbone(family=family, dtype=dtype)
    served = pack_backbone(plain)
    exact, expected = plain_answers(family, torch.float32), plain_answers(family, dtype)
    # Rounding in bfloat16 moves the answers of torch's own operations, too.
    allowed = 1e-4 + 2 * distance(expected, exact)

    assert distance(mixed_answers(family, served, served), exact) <= allowed
    assert distance(mixed_answers(family, without_fast_kernels(served), served), exact) <= allowed
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


def test_the_log_says_that_the_package_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "PACKAGE", "nunatak_ops_of_nobody")

    with caplog.at_level(logging.INFO):
        assert not has_native_operators()

    (record,) = caplog.records
    assert "nunatak-ops is not installed" in record.getMessage()


def test_a_package_that_does_not_load_is_left_alone_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = tmp_path / "nunatak_ops"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('undefined symbol')")
    monkeypatch.delitem(sys.modules, "nunatak_ops", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert not has_native_operators()

    (warning,) = [it.getMessage() for it in caplog.records]
    assert "nunatak-ops does not load (undefined symbol)" in warning
