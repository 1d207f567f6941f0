"""Graphs: the kernels of a trunk stage recorded once and replayed, without a launch for each.

On a fast device a short batch takes longer to launch than to compute. A recording holds for one
shape and reads fixed buffers, so shapes are rounded up to *buckets*: rows that are added are empty,
and tokens that are added belong to no row. What they give is undefined, and cut off.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from nunatak_model.architectures import architecture_of
from nunatak_model.backbone.backbone import Backbone
from nunatak_model.kernels.transfer import to_device, write_on_device
from nunatak_model.kernels.varlen import VarlenAttention, varlen_attention
from nunatak_model.mixed_layer import mix_layer

MAX_GRAPHS = 128
"""Recordings held; of more, the least recently used is dropped."""
MAX_TOKENS = 4096
"""More take longer to compute than to launch, and are run kernel by kernel."""
SMALLEST_TOKENS, SMALLEST_ROWS, SMALLEST_LENGTH = 16, 1, 16
STEPS = 8
"""Sizes between a power of two and the next: at most an eighth of the tokens is added."""

Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Runs a function once and returns what runs it again, over the same memory, to the same tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A shape that stands for all smaller ones down to the next bucket."""

    num_tokens: int
    num_rows: int
    longest: int


def bucket_of(lengths: Sequence[int]) -> Bucket:
    """The smallest bucket that holds rows of these lengths."""
    return Bucket(
        num_tokens=_rounded_up(sum(lengths), smallest=SMALLEST_TOKENS, steps=STEPS),
        num_rows=_rounded_up(len(lengths), smallest=SMALLEST_ROWS, steps=1),
        longest=_rounded_up(max(lengths), smallest=SMALLEST_LENGTH, steps=1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """A recorded stage, and the buffers that it reads."""

    hidden: Float[Tensor, "tokens width"]
    bounds: Int32[Tensor, " rows+1"]
    replay: Callable[[], Tensor]


class TrunkGraphs:
    """Recorded stages of trunk rows alone, by layers and bucket; used by one thread at a time."""

    def __init__(self, backbone: Backbone, *, record: Record, max_graphs: int = MAX_GRAPHS) -> None:
        self._backbone = backbone
        self._record = record
        self._max_graphs = max_graphs
        self._recordings: OrderedDict[tuple[int, int, Bucket], _Recording] = OrderedDict()

    def can_run(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths are few enough tokens."""
        return sum(lengths) <= MAX_TOKENS

    def run(
        self,
        hidden: Float[Tensor, "tokens width"],
        lengths: Sequence[int],
        *,
        begin_layer: int,
        end_layer: int,
    ) -> Float[Tensor, "tokens width"]:
        """Run frozen layers `[begin_layer, end_layer)` over rows of these lengths."""
        bucket = bucket_of(lengths)
        key = (begin_layer, end_layer, bucket)
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._recordings[key] = self._new_recording(*key)
            if len(self._recordings) > self._max_graphs:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        bounds = list(accumulate(lengths, initial=0))
        bounds += [bounds[-1]] * (bucket.num_rows + 1 - len(bounds))
        num_tokens = len(hidden)
        write_on_device(to_device(bounds, hidden.device, dtype=torch.int32), recording.bounds)
        recording.hidden[:num_tokens].copy_(hidden)
        # A copy, for the next replay writes over it.
        return recording.replay()[:num_tokens].clone()

    def _new_recording(self, begin_layer: int, end_layer: int, bucket: Bucket) -> _Recording:
        backbone = self._backbone
        shape = (bucket.num_tokens, backbone.config.hidden_width)
        hidden = torch.zeros(shape, dtype=backbone.dtype, device=backbone.device)
        bounds = torch.zeros(bucket.num_rows + 1, dtype=torch.int32, device=backbone.device)
        attention = VarlenAttention(
            bounds=bounds, longest=bucket.longest, num_tokens=bucket.num_tokens
        )

        def run() -> Tensor:
            run_layer = architecture_of(backbone.config).plan_layers(attention, backbone.config)
            state = hidden
            for index in range(begin_layer, end_layer):
                frozen = mix_layer(
                    backbone.layer(index), [], index=index, num_tokens=bucket.num_tokens
                )
                state = run_layer(state, frozen, dropout=0.0)
            return state

        return _Recording(hidden=hidden, bounds=bounds, replay=self._record(run))


def trunk_graphs(backbone: Backbone) -> TrunkGraphs | None:
    """Graphs for a backbone that is ready to serve; None where its kernels cannot be recorded."""
    is_recordable = backbone.kernels.attention is varlen_attention
    if backbone.device.type != "cuda" or not is_recordable:
        return None
    return TrunkGraphs(backbone, record=cuda_recorder(backbone.device))


def cuda_recorder(device: torch.device) -> Record:
    """Recording by CUDA graphs, which share the memory of what they compute on the way."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Once outside: what libraries set up at the first call cannot be recorded.
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads load versions meanwhile, which is no part of the recording.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    return record


def _rounded_up(number: int, *, smallest: int, steps: int) -> int:
    """The next of `steps` sizes for each doubling, from `smallest` up."""
    if number <= smallest:
        return smallest
    step = max(1, (1 << ((number - 1).bit_length() - 1)) // steps)
    return -(-number // step) * step
