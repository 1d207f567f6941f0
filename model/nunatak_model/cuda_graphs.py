"""Graphs: the kernels of a trunk stage are recorded once and replayed without launching each.

On a fast device a short batch takes longer to launch than to compute. A recording holds for one
shape and reads fixed buffers, so shapes are rounded up to *buckets*. Added rows are empty, and
added tokens belong to no row; their results are undefined and cut off.

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
"""Recordings held; of more, the least recently used is dropped."""
MAX_TOKENS = 4096
"""More take longer to compute than to launch, and are run kernel by kernel."""
SMALLEST_TOKENS, SMALLEST_ROWS, SMALLEST_LENGTH = 16, 1, 16
STEPS = 8
"""Sizes between a power of two and the next: at most an eighth of the tokens is added."""

TOLERANCE = 0.1
"""Largest difference of a token's state between a replay and launches, as a share of its norm.

Buckets of other shapes sum in another order, which moves a state in bfloat16 by about a hundredth;
a replay that read or wrote the wrong memory is off by about the whole norm.
"""

Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Runs a function once and returns what runs it again, over the same memory, to the same tensor."""

logger = logging.getLogger(__name__)


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
"""First layer, the layer behind the last, and the shape."""


class TrunkGraphs:
    """Recorded stages of trunk rows alone, by layers and bucket; used by one thread at a time."""

    def __init__(self, backbone: Backbone, *, record: Record, max_graphs: int = MAX_GRAPHS) -> None:
        self._backbone = backbone
        self._record = record
        self._recordings = LRUCache[_Key, _Recording](max_graphs)
        """Proven ones, used last."""
        self._is_off = False

    def can_run(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths have few enough tokens, and recordings can be trusted."""
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
        """Run a stage kernel by kernel, and keep a recording of it if the replay gives the same."""
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
    """Graphs for a backbone that is ready to serve; None where its kernels cannot be recorded."""
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
        # The device and the stream by name: torch would else record on the current device, where
        # none of this runs. Both are set back whatever fails, which torch leaves undone.
        with torch.cuda.device(device), torch.cuda.stream(aside):
            # Once outside: what libraries set up at the first call cannot be recorded.
            run()
            # Other threads load versions meanwhile, which is no part of the recording.
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
