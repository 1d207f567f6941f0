import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from doubles.backbones import Family, tiny_backbone
from doubles.refusals import raises
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
    keep_lowest_layers,
    trunk_graphs,
)
from nunatak_model.cuda_graphs import TOKENS, Record, TrunkGraphs, shapes_for

METHODS: tuple[Method, ...] = (HeadOnly(), TopK(num_layers=1), TopK(num_layers=2))
SIZES = (32, 64, 512)


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


def recorded(backbone: Backbone, record: Record) -> TrunkGraphs:
    graphs = TrunkGraphs(backbone, record=record, max_rows=8, sizes=SIZES)
    graphs.record()
    return graphs


@pytest.fixture(scope="module", params=["bert", "modernbert", "qwen3"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    family: Family = request.param
    return with_gpu_kernels(tiny_backbone(family=family, num_layers=3))


@pytest.fixture(scope="module")
def record(backbone: Backbone) -> Recorder:
    """One for each backbone."""
    del backbone
    return Recorder()


@pytest.fixture(scope="module")
def graphs(backbone: Backbone, record: Recorder) -> TrunkGraphs:
    return recorded(backbone, record)


def test_replayed_stages_answer_as_those_that_are_launched(
    backbone: Backbone, graphs: TrunkGraphs, record: Recorder
) -> None:
    num_recorded, num_replayed = record.num_recorded, record.num_replayed

    with torch.inference_mode():
        for seed, lengths in enumerate([[3, 9, 30, 2], [30, 9, 4, 1], [5], [64] * 7, [1, 1, 1]]):
            rows = rows_of(backbone, lengths, seed)
            for one, other in zip(
                forward(backbone, rows, graphs=graphs), forward(backbone, rows), strict=True
            ):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)

    assert record.num_replayed > num_replayed
    assert record.num_recorded == num_recorded


def test_nothing_is_recorded_once_the_server_answers(
    backbone: Backbone, graphs: TrunkGraphs, record: Recorder
) -> None:
    shapes = shapes_for(backbone.config.max_tokens, SIZES)

    assert graphs.is_on
    assert record.num_recorded == len(shapes) * (1 + backbone.config.num_layers)


@pytest.mark.parametrize(("begin", "end"), [(0, 3), (0, 1), (1, 3), (2, 3)])
def test_recordings_of_layers_serve_every_depth(
    begin: int, end: int, backbone: Backbone, graphs: TrunkGraphs
) -> None:
    hidden = torch.randn(13, backbone.config.hidden_width)
    alone = TrunkGraphs(backbone, record=Recorder())

    with torch.inference_mode():
        found = graphs.run(hidden, [6, 7], begin_layer=begin, end_layer=end)
        expected = hidden
        for layer in range(begin, end):
            expected = graphs.run(expected, [6, 7], begin_layer=layer, end_layer=layer + 1)

    assert torch.equal(found, expected)
    assert not alone.can_run([6, 7], end_layer=end)


def test_what_an_earlier_batch_left_in_the_buffers_reaches_no_answer(
    backbone: Backbone, graphs: TrunkGraphs
) -> None:
    spoilt = torch.full((16, backbone.config.hidden_width), torch.nan)
    hidden = torch.randn(13, backbone.config.hidden_width)

    with torch.inference_mode():
        before = graphs.run(hidden, [6, 7], begin_layer=0, end_layer=2)
        graphs.run(spoilt, [8, 8], begin_layer=0, end_layer=2)
        after = graphs.run(hidden, [6, 7], begin_layer=0, end_layer=2)

    assert torch.equal(after, before)


def test_what_was_returned_survives_the_next_replay(graphs: TrunkGraphs) -> None:
    with torch.inference_mode():
        first = graphs.run(torch.randn(9, 32), [9], begin_layer=0, end_layer=2)
        kept = first.clone()
        graphs.run(torch.randn(9, 32), [9], begin_layer=0, end_layer=2)

    assert torch.equal(first, kept)


def record_elsewhere(run: Callable[[], None]) -> Callable[[], None]:
    """Records nothing, as if the kernels ran on another device."""
    run()
    return lambda: None


def record_what_was_read_once(run: Callable[[], None]) -> Callable[[], None]:
    """Replays every layer but leaves out the plan, so that positions are of an earlier batch."""
    replay = Recorder()(run)
    return replay if isinstance(run, partial) else lambda: None


def fail_to_record(run: Callable[[], None]) -> Callable[[], None]:
    run()
    raise torch.OutOfMemoryError("no room for a recording")


class RecordUpTo:
    """Records like a device, until there is no memory left."""

    def __init__(self, count: int) -> None:
        self._left, self._record = count, Recorder()

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self._left -= 1
        return self._record(run) if self._left >= 0 else fail_to_record(run)


@pytest.mark.parametrize(
    "record", [record_elsewhere, fail_to_record, RecordUpTo(4)], ids=["elsewhere", "none", "some"]
)
def test_recordings_that_fail_or_differ_are_not_used_and_change_no_answer(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = with_gpu_kernels(tiny_backbone(num_layers=2))
    graphs = recorded(backbone, record)
    rows = rows_of(backbone, [3, 9, 30, 2], seed=0)

    with torch.inference_mode():
        found, expected = forward(backbone, rows, graphs=graphs), forward(backbone, rows)

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not graphs.is_on
    assert not graphs.can_run([1], end_layer=1)
    assert [it.levelname for it in caplog.records] == ["WARNING"]


def test_a_replay_with_the_positions_of_an_earlier_batch_is_found_out() -> None:
    graphs = recorded(
        with_gpu_kernels(tiny_backbone(num_layers=2, family="modernbert")),
        record_what_was_read_once,
    )

    assert not graphs.is_on


def test_what_a_device_cannot_record_cannot_be_recorded_here() -> None:
    values = torch.ones(2)

    def read() -> None:
        values.mul_(values.sum().item())

    def bring() -> None:
        values.add_(torch.tensor([1.0, 2.0]))

    for run in (read, bring):
        with pytest.raises(RuntimeError, match="not permitted"):
            Recorder()(run)


def test_rows_for_which_nothing_is_recorded_are_launched(graphs: TrunkGraphs) -> None:
    assert graphs.can_run([64] * 8, end_layer=3)
    assert not graphs.can_run([64] * 8 + [1], end_layer=3)


def test_a_layer_that_is_not_in_memory_is_never_left_out() -> None:
    whole = tiny_backbone(num_layers=3)
    served = with_gpu_kernels(keep_lowest_layers(whole, 2))
    graphs = recorded(served, Recorder())
    (row,) = rows_of(with_gpu_kernels(whole), [9], seed=0)

    assert graphs.can_run([9], end_layer=2)
    assert not graphs.can_run([9], end_layer=3)
    with torch.inference_mode(), raises("layer_not_held"):
        forward(served, [row], graphs=graphs)


@pytest.mark.parametrize("longest_row", [66, 512, 8192])
def test_shapes_are_few_and_hold_every_short_batch_with_few_added_tokens(longest_row: int) -> None:
    chance, shapes = random.Random(0), shapes_for(longest_row)

    assert len(shapes) <= 3 * len(TOKENS)
    for _ in range(500):
        lengths = [chance.randint(1, min(512, longest_row)) for _ in range(chance.randint(1, 8))]
        shape = next(it for it in shapes if it.holds(lengths))
        assert shape.num_tokens <= max(32, 2 * sum(lengths))
        assert sum(lengths) <= 512 or shape.num_tokens <= 1.25 * sum(lengths)


def test_a_cpu_records_nothing() -> None:
    assert trunk_graphs(with_gpu_kernels(tiny_backbone())) is None
    assert trunk_graphs(tiny_backbone()) is None


def test_the_state_of_a_row_is_the_only_thing_that_a_replay_returns(graphs: TrunkGraphs) -> None:
    hidden: Tensor = torch.randn(5, 32)

    with torch.inference_mode():
        assert graphs.run(hidden, [5], begin_layer=0, end_layer=1).shape == (5, 32)
