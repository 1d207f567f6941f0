"""Graphs: the kernels of a trunk stage are recorded once, and replayed with one launch.

On a fast device a short batch takes longer to launch than to compute. A recording holds for one
shape and reads fixed buffers, so shapes are rounded up to *buckets*. Added rows are empty, and
added tokens belong to no row. The results of added tokens are undefined and cut off.

No recording answers before it is proven: the stage runs once kernel by kernel, and the first replay
must give the same result. If a recording cannot be made, or gives another result, the process stops
all replays and runs stages kernel by kernel from then on.

Axes: tokens = packed tokens of the rows, bounds = number of rows plus one, width = hidden width.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from cachetools import LRUCache
from jaxtyping import Float, Int32
from torch import Tensor

from nunatak_model.architectures import architecture_of
from nunatak_model.backbone import Backbone
from nunatak_model.layer import mix_layer
from nunatak_model.ops.attention import Attention, VarlenAttention, varlen_attention
from nunatak_model.ops.device import to_device, write_on_device

MAX_GRAPHS = 128
"""Most recordings in memory. A further recording replaces the least recently used."""
MAX_TOKENS = 4096
"""Most tokens of a recorded stage. More tokens take longer to compute than to launch."""
SMALLEST_TOKENS, SMALLEST_ROWS, SMALLEST_LENGTH = 16, 1, 16
STEPS = 8
"""Number of bucket sizes for each doubling. Rounding up adds at most an eighth of the tokens."""

TOLERANCE = 0.1
"""Largest difference of a token's state between a replay and launches, as a share of its norm.

Buckets of other shapes sum in another order, which moves a state in bfloat16 by about a hundredth;
a replay that read or wrote the wrong memory is off by about the whole norm.
"""

Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Records one run of a function. Returns a function that replays it: same memory, same result
tensor."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A shape for all smaller shapes down to the next bucket."""

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
    bounds: Int32[Tensor, " bounds"]
    replay: Callable[[], Tensor]

    def run(
        self, hidden: Float[Tensor, "tokens width"], lengths: Sequence[int]
    ) -> Float[Tensor, "tokens width"]:
        """Replay the stage over rows of these lengths."""
        bounds = list(accumulate(lengths, initial=0))
        bounds += [bounds[-1]] * (len(self.bounds) - len(bounds))
        num_tokens = len(hidden)
        write_on_device(to_device(bounds, hidden.device, dtype=torch.int32), self.bounds)
        self.hidden[:num_tokens].copy_(hidden)
        # A copy, since the next replay overwrites the output.
        return self.replay()[:num_tokens].clone()


_Key = tuple[int, int, Bucket]
"""First layer, the layer after the last, and the shape."""


class TrunkGraphs:
    """Recorded stages of trunk rows alone, by layers and bucket; used by one thread at a time."""

    def __init__(self, backbone: Backbone, *, record: Record, max_graphs: int = MAX_GRAPHS) -> None:
        self._backbone = backbone
        self._record = record
        self._recordings = LRUCache[_Key, _Recording](max_graphs)
        """Proven recordings, from the least to the most recently used."""
        self._is_off = False

    def can_run(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths have few enough tokens, and no recording has failed."""
        return not self._is_off and sum(lengths) <= MAX_TOKENS

    def run(
        self,
        hidden: Float[Tensor, "tokens width"],
        lengths: Sequence[int],
        *,
        begin_layer: int,
        end_layer: int,
    ) -> Float[Tensor, "tokens width"]:
        """Run frozen layers `[begin_layer, end_layer)` over rows of these lengths."""
        key = (begin_layer, end_layer, bucket_of(lengths))
        recording = self._recordings.get(key)
        if recording is None:
            return self._first_run(hidden, lengths, key)
        return recording.run(hidden, lengths)

    def _first_run(
        self, hidden: Float[Tensor, "tokens width"], lengths: Sequence[int], key: _Key
    ) -> Float[Tensor, "tokens width"]:
        """Run a stage kernel by kernel. Keep a recording if its replay gives the same result."""
        begin, end, _ = key
        attention = self._backbone.ops.attention(lengths, hidden.device)
        launched = self._launch(hidden, attention, begin, end)
        try:
            recording = self._new_recording(key)
            is_proven = _is_same(recording.run(hidden, lengths), launched)
        except RuntimeError as error:
            self._turn_off(f"a stage could not be recorded ({error})")
            return launched
        if not is_proven:
            self._turn_off("a replay gave other states than the kernels that it recorded")
            return launched
        self._recordings[key] = recording
        return launched

    def _turn_off(self, reason: str) -> None:
        self._is_off = True
        self._recordings.clear()
        logger.warning(
            "recorded trunks are off from now on, and answers stay right: %s; start the server "
            "without NUNATAK_CUDA_GRAPHS",
            reason,
        )

    def _new_recording(self, key: _Key) -> _Recording:
        begin, end, bucket = key
        backbone = self._backbone
        shape = (bucket.num_tokens, backbone.config.hidden_width)
        hidden = torch.zeros(shape, dtype=backbone.dtype, device=backbone.device)
        bounds = torch.zeros(bucket.num_rows + 1, dtype=torch.int32, device=backbone.device)
        attention = VarlenAttention(
            bounds=bounds, longest=bucket.longest, num_tokens=bucket.num_tokens
        )
        replay = self._record(lambda: self._launch(hidden, attention, begin, end))
        return _Recording(hidden=hidden, bounds=bounds, replay=replay)

    def _launch(
        self,
        hidden: Float[Tensor, "tokens width"],
        attention: Attention,
        begin_layer: int,
        end_layer: int,
    ) -> Float[Tensor, "tokens width"]:
        backbone = self._backbone
        run_layer = architecture_of(backbone.config).plan_layers(attention, backbone.config)
        for index in range(begin_layer, end_layer):
            frozen = mix_layer(backbone.layer(index), [], index=index, num_tokens=len(hidden))
            hidden = run_layer(hidden, frozen, dropout=0.0)
        return hidden


def trunk_graphs(backbone: Backbone) -> TrunkGraphs | None:
    """Graphs for a backbone that is ready to serve; None if its kernels cannot be recorded."""
    is_recordable = backbone.ops.attention is varlen_attention
    if backbone.device.type != "cuda" or not is_recordable:
        return None
    return TrunkGraphs(backbone, record=cuda_recorder(backbone.device))


def cuda_recorder(device: torch.device) -> Record:
    """Recording by CUDA graphs on one device; the graphs share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        # The device and the stream are explicit, because torch would record on the current device.
        # Both are set back after a failure too, which torch does not do.
        with torch.cuda.device(device), torch.cuda.stream(aside):
            # The first call sets up libraries, which cannot be recorded, so it runs outside the
            # recording.
            run()
            # Other threads may load versions meanwhile; their work is not recorded.
            with torch.cuda.graph(
                graph, pool=pool, stream=aside, capture_error_mode="thread_local"
            ):
                output = run()
        torch.cuda.current_stream(device).wait_stream(aside)

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    return record


def _is_same(
    replayed: Float[Tensor, "tokens width"], launched: Float[Tensor, "tokens width"]
) -> bool:
    """Whether each token's states are equal up to the order of sums; waits for the device."""
    difference = (replayed.float() - launched.float()).square().sum(1)
    # A comparison with NaN or infinity is false, so such a state proves nothing.
    return bool((difference <= TOLERANCE**2 * launched.float().square().sum(1)).all())


def _rounded_up(number: int, *, smallest: int, steps: int) -> int:
    """The next of `steps` sizes for each doubling, from `smallest` up."""
    if number <= smallest:
        return smallest
    step = max(1, (1 << ((number - 1).bit_length() - 1)) // steps)
    return -(-number // step) * step
