import random
from collections.abc import Callable, Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nunatak_server.scheduler.batch_time import (
    FIXED_SHARE,
    MIN_EFFICIENT_TOKENS,
    SIZE_VARIATION,
    BatchTimeModel,
    LinearFit,
)

sizes = st.lists(st.integers(10, 4000), min_size=2, max_size=30).filter(
    lambda them: max(them) > 4 * min(them)
)


FIXED_S, PER_TOKEN_S = 1e-3, 0.15e-3


def pace_of(batches: Sequence[tuple[float, float]]) -> BatchTimeModel:
    """Return the time_model after batches of tokens and seconds."""
    time_model = BatchTimeModel().after(work=1, asked_tokens=1, seconds=100)
    for work, seconds in batches:
        time_model = time_model.after(work=work, asked_tokens=work, seconds=seconds)
    return time_model


@given(sizes, st.floats(1e-3, 0.1), st.floats(1e-5, 1e-3), st.floats(0.01, 0.5))
@settings(derandomize=True)
def test_a_batch_of_efficient_size_spends_its_share_on_what_is_fixed(
    tokens: list[int], fixed_s: float, per_token_s: float, share: float
) -> None:
    learnt = pace_of([(n, fixed_s + n * per_token_s) for n in tokens])
    size = learnt._replace(fixed_share=share).efficient_tokens

    if size > MIN_EFFICIENT_TOKENS and size < inf:
        assert fixed_s / (fixed_s + size * per_token_s) == pytest.approx(share, rel=0.01)


PER_TASK_S = 0.9e-3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alone_share", [0.0, 0.3])
def test_batches_are_about_as_efficient_as_wanted_though_each_task_takes_time_as_well(
    seed: int, alone_share: float
) -> None:
    """Rows of light tasks go alone, and others in batches of nine tasks."""
    draw, per_token_s = random.Random(seed), PER_TOKEN_S
    time_model = BatchTimeModel().after(work=1, asked_tokens=1, seconds=1)

    def seconds_of(work: float, num_tasks: int) -> float:
        return 3.5e-3 + PER_TASK_S * num_tasks + per_token_s * work

    for count in range(600):
        goes_alone = count < 20 or draw.random() < alone_share
        limit = 0.0 if goes_alone else min(time_model.next_tokens, 64 * 25)
        tokens = [draw.randint(8, 42)]
        while sum(tokens) + 25 <= limit:
            tokens.append(draw.randint(8, 42))
        work, seconds = sum(tokens), seconds_of(sum(tokens), min(9, len(tokens)))
        seconds *= draw.lognormvariate(0, 0.03)
        time_model = time_model.after(work=work, asked_tokens=work, seconds=seconds)

    size = min(time_model.efficient_tokens, 64 * 25)
    reached = size / seconds_of(size, 9) * seconds_of(64 * 25, 9) / (64 * 25)
    assert reached == pytest.approx(1 - FIXED_SHARE, abs=0.08)


def test_batches_of_one_size_tell_nothing_about_the_fixed_part() -> None:
    assert pace_of([(100, 1.0)] * 50).efficient_tokens == inf


def test_what_was_learnt_is_kept_while_all_batches_are_of_one_size() -> None:
    learnt = [(10, 1.01), (1000, 2.0)]

    before, after = pace_of(learnt), pace_of(learnt + [(500, 1.5)] * 2000)

    assert before.efficient_tokens == pytest.approx(1000 * (1 / FIXED_SHARE - 1))
    assert after.efficient_tokens == pytest.approx(1000 * (1 / FIXED_SHARE - 1), rel=0.3)


@pytest.mark.parametrize("wrong", [MIN_EFFICIENT_TOKENS, 5000.0])
def test_a_wrong_size_is_found_out_though_all_rows_are_alike(wrong: float) -> None:
    row, fixed_s, per_token_s = 18, 6e-3, 0.3e-3
    fit = LinearFit(fixed_s=wrong * FIXED_SHARE / (1 - FIXED_SHARE), per_token_s=1)
    time_model = BatchTimeModel().after(work=1, asked_tokens=1, seconds=1)._replace(fit=fit)

    for _ in range(300):
        work = row * max(1, int(time_model.next_tokens // row))
        time_model = time_model.after(
            work=work, asked_tokens=work, seconds=fixed_s + work * per_token_s
        )

    right = (1 / FIXED_SHARE - 1) * fixed_s / per_token_s
    assert time_model.efficient_tokens == pytest.approx(right, rel=0.05)


def test_sizes_swing_around_the_efficient_one() -> None:
    time_model = pace_of([(10, 1.01), (1000, 2.0)])

    following = time_model.after(work=100, asked_tokens=100, seconds=1.1)

    swings = [it.next_tokens / it.efficient_tokens for it in (time_model, following)]
    assert sorted(swings) == pytest.approx([1 - SIZE_VARIATION, 1 + SIZE_VARIATION])


def batches(draw: random.Random, *, delay_s: Callable[[], float]) -> list[tuple[float, float]]:
    """Return batches of a few short texts, each delayed by the machine."""
    tokens = [draw.choice((12, 15, 30, 45)) for _ in range(1000)]
    return [(n, FIXED_S + n * PER_TOKEN_S + delay_s()) for n in tokens]


@given(st.integers(0, 2**16))
@settings(derandomize=True, max_examples=10, deadline=None)
def test_a_machine_that_stalls_now_and_then_does_not_make_batches_long(seed: int) -> None:
    draw = random.Random(seed)
    calm = pace_of(batches(draw, delay_s=lambda: 0.0))
    stalling = batches(draw, delay_s=lambda: draw.expovariate(1.0) * (draw.random() < 0.01))

    assert pace_of(stalling).efficient_tokens < 3 * calm.efficient_tokens


def test_a_fixed_part_that_grows_and_stays_is_learnt() -> None:
    before = [(n, 1e-3 + n * PER_TOKEN_S) for n in (10, 20, 40) * 20]
    after = [(n, 10e-3 + n * PER_TOKEN_S) for n in (10, 20, 40) * 1000]

    learnt, expected = pace_of([*before, *after]), pace_of(after)

    assert learnt.efficient_tokens == pytest.approx(expected.efficient_tokens, rel=0.05)


def test_a_machine_without_a_fixed_part_still_gets_a_few_rows() -> None:
    assert pace_of([(n, n * 1e-3) for n in (10, 1000)]).efficient_tokens == MIN_EFFICIENT_TOKENS


def test_the_first_batch_is_not_counted() -> None:
    time_model = BatchTimeModel().after(work=9, asked_tokens=9, seconds=1)

    assert (time_model.tokens_per_s, time_model.largest_tokens, time_model.efficient_tokens) == (
        None,
        0,
        inf,
    )


def test_the_pace_is_that_of_the_fastest_of_recent_batches() -> None:
    fast, slow = (100, 1.0), (100, 2.0)

    assert pace_of([fast, slow]).tokens_per_s == pytest.approx(98)
    assert pace_of([fast, *[slow] * 200]).tokens_per_s == 50


def test_batches_whose_states_are_all_held_tell_nothing_of_tokens() -> None:
    learnt = pace_of([(tokens, FIXED_S + PER_TOKEN_S * tokens) for tokens in (20, 200) * 20])
    time_model = learnt
    for _ in range(100_000):
        time_model = time_model.after(work=0, asked_tokens=20, seconds=1e-3)

    assert time_model.next_tokens == learnt.next_tokens
    assert time_model.largest_tokens == 20


@pytest.mark.parametrize("token_cost", [0.5, 0.04])
def test_batches_of_two_backbones_have_the_size_that_each_would_have_alone(
    token_cost: float,
) -> None:
    fixed_s, per_token_s = 0.02, 0.0005
    alone = both = BatchTimeModel()
    for number in range(200):
        tokens = 300.0 + 100 * (number % 5)
        seconds = fixed_s + per_token_s * tokens
        cost = token_cost if number % 2 else 1.0
        work = cost * tokens
        alone = alone.after(work=tokens, asked_tokens=tokens, seconds=seconds)
        both = both.after(work=work, asked_tokens=work, seconds=cost * seconds, token_cost=cost)

    assert both.efficient_tokens == pytest.approx(alone.efficient_tokens)
    assert both.tokens_per_s == pytest.approx(alone.tokens_per_s)
