import pytest
import torch

from doubles.flash import install_flash_double
from nunatak_model.ops import attention
from nunatak_model.ops.attention import attention_by_runs, can_attend_varlen, varlen_attention

CPU = torch.device("cpu")
NUM_HEADS, HEAD_WIDTH = 2, 8
LENGTHS = [[7], [5, 5, 5], [1, 9, 2, 8, 7, 30], [40, 31, 3]]


@pytest.fixture(autouse=True)
def _flash() -> None:
    install_flash_double()


def random_qkv(lengths: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sum(lengths), 3 * NUM_HEADS * HEAD_WIDTH, generator=generator)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_one_call_for_all_rows_sees_what_a_call_for_each_run_sees(lengths: list[int]) -> None:
    qkv = random_qkv(lengths)

    seen = varlen_attention(lengths, CPU)(qkv, num_heads=NUM_HEADS, dropout=0.0)

    expected = attention_by_runs(lengths, CPU)(qkv, num_heads=NUM_HEADS, dropout=0.0)
    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)


def test_a_build_without_the_operator_calls_torchs_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = LENGTHS[2]
    qkv, planned = random_qkv(lengths), varlen_attention(lengths, CPU).narrow(3)
    expected = planned(qkv, num_heads=NUM_HEADS, dropout=0.0)

    monkeypatch.setattr(attention, "FLASH_OPERATOR", "_no_such_operator")
    seen = planned(qkv, num_heads=NUM_HEADS, dropout=0.0)

    assert torch.equal(seen, expected)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("reach", [1, 3, 100])
def test_a_window_is_as_wide_as_a_reach(lengths: list[int], reach: int) -> None:
    qkv = random_qkv(lengths)

    seen = varlen_attention(lengths, CPU).narrow(reach)(qkv, num_heads=NUM_HEADS, dropout=0.0)

    by_runs = attention_by_runs(lengths, CPU).narrow(reach)
    expected = by_runs(qkv, num_heads=NUM_HEADS, dropout=0.0)
    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("num_shared", [1, 2])
def test_causal_rows_and_shared_heads_are_those_of_attention_by_runs(
    lengths: list[int], num_shared: int
) -> None:
    qkv = torch.randn(sum(lengths), (NUM_HEADS + 2 * num_shared) * HEAD_WIDTH)

    seen, expected = (
        plan(lengths, CPU).causal()(qkv, num_heads=NUM_HEADS, num_key_heads=num_shared, dropout=0.0)
        for plan in (varlen_attention, attention_by_runs)
    )

    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_positions_found_on_the_device_are_those_counted_on_the_host(lengths: list[int]) -> None:
    counted = attention_by_runs(lengths, CPU).positions()

    assert torch.equal(varlen_attention(lengths, CPU).positions(), counted)


def test_dropout_is_refused_rather_than_left_out() -> None:
    with pytest.raises(ValueError, match="have no dropout"):
        varlen_attention([3], CPU)(random_qkv([3]), num_heads=NUM_HEADS, dropout=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cpu_attends_by_runs(dtype: torch.dtype) -> None:
    assert not can_attend_varlen(dtype, CPU, head_width=64)
