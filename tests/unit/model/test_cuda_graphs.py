import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from doubles.backbones import Family, tiny_backbone
from doubles.serving_kernels import Recorder, with_gpu_kernels
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import (
    Backbone,
    BranchSpec,
    Encoding,
    HeadSpec,
    Row,
    build_branch,
    convert_branch,
    forward,
    initial_parameters,
    trunk_graphs,
)
from nunatak_model.cuda_graphs import MAX_TOKENS, STEPS, Record, TrunkGraphs, bucket_of

METHODS: tuple[Method, ...] = (HeadOnly(), TopK(num_layers=1), TopK(num_layers=2))


def text(chance: random.Random, num_tokens: int) -> Encoding:
    tokens = tuple(chance.randint(5, 99) for _ in range(num_tokens))
    return Encoding(token_ids=tokens, type_ids=(0,) * num_tokens)


def rows_of(backbone: Backbone, lengths: list[int], seed: int) -> list[Row]:
    """Rows of these lengths for each method in turn; the seed decides the tasks."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows = list[Row]()
    for index, length in enumerate(lengths):
        spec = BranchSpec(
            method=METHODS[index % len(METHODS)],
            head=HeadSpec(num_labels=3, pooling=Pooling.MEAN),
        )
        parameters = initial_parameters(spec, backbone, generator=generator)
        branch = convert_branch(build_branch(spec, backbone.config, parameters), backbone)
        rows.append(Row(encoding=text(chance, length), branch=branch))
    return rows


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_replayed_stages_answer_as_those_that_are_launched(family: Family) -> None:
    backbone = with_gpu_kernels(tiny_backbone(family=family))
    record = Recorder()
    graphs = TrunkGraphs(backbone, record=record)

    with torch.inference_mode():
        for seed, lengths in enumerate([[3, 9, 30, 2], [30, 9, 4, 1], [5], [64] * 7, [1, 1, 1]]):
            rows = rows_of(backbone, lengths, seed)
            for one, other in zip(
                forward(backbone, rows, graphs=graphs), forward(backbone, rows), strict=True
            ):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)

    assert record.num_replayed > record.num_recorded > 0


def test_what_an_earlier_batch_left_in_the_buffers_reaches_no_answer() -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    graphs = TrunkGraphs(backbone, record=Recorder())
    spoilt = torch.full((16, backbone.config.hidden_width), torch.nan)
    hidden = torch.randn(13, backbone.config.hidden_width)
    fresh = TrunkGraphs(backbone, record=Recorder())

    with torch.inference_mode():
        graphs.run(torch.randn_like(spoilt), [8, 8], begin_layer=0, end_layer=2)
        graphs.run(spoilt, [8, 8], begin_layer=0, end_layer=2)
        after = graphs.run(hidden, [6, 7], begin_layer=0, end_layer=2)
        fresh.run(hidden, [6, 7], begin_layer=0, end_layer=2)
        before = fresh.run(hidden, [6, 7], begin_layer=0, end_layer=2)

    assert torch.equal(after, before)


def test_what_was_returned_survives_the_next_replay() -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    graphs = TrunkGraphs(backbone, record=Recorder())
    with torch.inference_mode():
        graphs.run(torch.randn(9, 32), [9], begin_layer=0, end_layer=2)
        first = graphs.run(torch.randn(9, 32), [9], begin_layer=0, end_layer=2)
        kept = first.clone()
        graphs.run(torch.randn(9, 32), [9], begin_layer=0, end_layer=2)

    assert torch.equal(first, kept)


def record_elsewhere(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Records nothing, as if the kernels ran on another device."""
    output = run().clone()
    return lambda: output


def record_nothing_finite(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    output = torch.full_like(run(), torch.nan)
    return lambda: output


def fail_to_record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    run()
    raise torch.OutOfMemoryError("no room for a recording")


@pytest.mark.parametrize("record", [record_elsewhere, record_nothing_finite, fail_to_record])
def test_a_recording_that_fails_or_gives_something_else_ends_all_replays_and_changes_no_answer(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    graphs = TrunkGraphs(backbone, record=record)
    rows = rows_of(backbone, [3, 9, 30, 2], seed=0)

    with torch.inference_mode():
        answers = [forward(backbone, rows, graphs=graphs) for _ in range(3)]
        expected = forward(backbone, rows)

    for found in answers:
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not graphs.can_run([1])
    assert [it.levelname for it in caplog.records] == ["WARNING"]


def test_a_recording_that_was_right_before_gives_no_answer_once_another_is_wrong() -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    right = Recorder()
    records: list[Record] = [right, record_elsewhere]

    def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return records.pop(0)(run)

    graphs = TrunkGraphs(backbone, record=record)
    short, long = (rows_of(backbone, [length], seed=0) for length in (4, 60))

    with torch.inference_mode():
        for rows in (short, long, short, long):
            found, expected = forward(backbone, rows, graphs=graphs), forward(backbone, rows)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

    assert right.num_replayed == 1
    assert not records


def test_the_least_recently_used_recording_goes_first() -> None:
    backbone = with_gpu_kernels(tiny_backbone())
    record = Recorder()
    graphs = TrunkGraphs(backbone, record=record, max_graphs=2)

    def run(length: int) -> int:
        graphs.run(torch.randn(length, 32), [length], begin_layer=0, end_layer=1)
        return record.num_recorded

    with torch.inference_mode():
        assert [run(16), run(32), run(16), run(64), run(16), run(32)] == [1, 2, 2, 3, 3, 4]


def test_a_bucket_holds_its_rows_and_adds_few_tokens() -> None:
    chance = random.Random(0)
    for _ in range(2000):
        lengths = [chance.randint(1, 512) for _ in range(chance.randint(1, 40))]
        bucket, num_tokens = bucket_of(lengths), sum(lengths)

        assert num_tokens <= bucket.num_tokens <= max(16, num_tokens * (1 + 1 / STEPS))
        assert len(lengths) <= bucket.num_rows < 2 * len(lengths) + 1
        assert max(lengths) <= bucket.longest <= max(16, 2 * max(lengths))


def test_buckets_of_all_short_batches_are_few() -> None:
    assert len({bucket_of([total]).num_tokens for total in range(1, MAX_TOKENS + 1)}) <= 80


def test_a_cpu_records_nothing() -> None:
    assert trunk_graphs(with_gpu_kernels(tiny_backbone())) is None
    assert trunk_graphs(tiny_backbone()) is None
