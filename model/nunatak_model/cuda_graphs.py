"""Graphs: the kernels of each frozen layer are recorded at the start, and replayed with one launch.

On a fast device a short batch takes longer to launch than to compute. Layers are recorded one by
one, so that the recordings serve every split depth. A recording holds for one shape and reads fixed
buffers, so a stage runs in the smallest recorded shape that holds its rows. Added rows are empty,
and added tokens belong to no row. The results of added tokens are undefined and cut off.

Nothing is recorded while the server answers, because a recording waits for all work of the device.
No recording answers before it is proven: each replay must give the same states as the kernels
themselves. If a layer cannot be recorded, or differs, all stages run kernel by kernel.

Axes: tokens = packed tokens of the rows, bounds = number of rows plus one, width = hidden width.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nunatak_model.architectures import RunLayer, architecture_of
from nunatak_model.backbone import Backbone
from nunatak_model.layer import mix_layer
from nunatak_model.ops.attention import VarlenAttention, varlen_attention
from nunatak_model.ops.device import on_device, to_device, write_on_device

TOKENS = (
    *(32, 64, 128, 256, 512, 640, 768, 896, 1024),
    *(1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096),
)
"""Numbers of tokens that are recorded. Short batches take the same time at any of the first sizes;
above, rounding up adds a quarter at most. More tokens take longer to compute than to launch."""
LONGEST = (128, 512, TOKENS[-1])
"""Longest rows that are recorded. Blocks of a kernel without tokens end at once."""
DEFAULT_ROWS = 64

CHANGE_TOLERANCE, STATE_TOLERANCE = 0.1, 0.01
"""Largest difference of a token's state after a replayed layer: as a share of the layer's change,
plus a share of the state.

Kernels for other shapes sum in another order, which moves a state in bfloat16 by less than a
hundredth; a replay that computes nothing, or from wrong memory, misses the whole change.
"""

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the kernels that a function launches. Returns a function that launches them again, on
the same memory."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A recorded shape, for all batches that are not larger."""

    num_tokens: int
    longest: int

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths fit."""
        return sum(lengths) <= self.num_tokens and max(lengths) <= self.longest


def shapes_for(longest_row: int, sizes: Sequence[int] = TOKENS) -> tuple[Shape, ...]:
    """The shapes to record for rows of up to `longest_row` tokens, from small to large."""
    found = [
        Shape(num_tokens=tokens, longest=min(longest, tokens, longest_row))
        for tokens in sizes
        for longest in LONGEST
    ]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """The recorded kernels of one shape."""

    plan: Callable[[], None]
    """Replays what all layers share; each batch needs it once, before the layers."""
    layers: tuple[Callable[[], None], ...]
    run_layer: RunLayer
    """Owns the memory that `plan` writes and `layers` read."""


class TrunkGraphs:
    """Recorded layers of trunk rows alone; used by one thread at a time, after `record`."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        record: Record,
        max_rows: int = DEFAULT_ROWS,
        sizes: Sequence[int] = TOKENS,
    ) -> None:
        """`sizes` are the numbers of tokens to record, from small to large."""
        self._backbone = backbone
        self._record = record
        self._shapes = shapes_for(backbone.config.max_tokens, sizes)
        self._recordings: dict[Shape, _Recording] = {}
        """Proven recordings, from small to large."""
        width, device = backbone.config.hidden_width, backbone.device
        self._hidden = torch.zeros(sizes[-1], width, dtype=backbone.dtype, device=device)
        self._bounds = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)

    @property
    def is_on(self) -> bool:
        """Whether recordings serve: they were made, and all are proven."""
        return bool(self._recordings)

    def record(self) -> None:
        """Record and prove all shapes; after a failure log a warning, and run nothing."""
        made = dict[Shape, _Recording]()
        try:
            with on_device(self._backbone.device), torch.inference_mode():
                for shape in self._shapes:
                    made[shape] = self._recorded(shape)
                    if not self._is_proven(made[shape], shape):
                        _warn("a replay gave other states than the kernels that it recorded")
                        return
        except RuntimeError as error:
            _warn(f"a layer could not be recorded ({error})")
            return
        self._recordings = made

    def can_run(self, lengths: Sequence[int], *, end_layer: int) -> bool:
        """Whether the layers below `end_layer` are recorded for rows of these lengths."""
        is_small = len(lengths) < len(self._bounds) and end_layer <= len(self._backbone.layers)
        return is_small and self._find(lengths) is not None

    def run(
        self,
        hidden: Float[Tensor, "tokens width"],
        lengths: Sequence[int],
        *,
        begin_layer: int,
        end_layer: int,
    ) -> Float[Tensor, "tokens width"]:
        """Run frozen layers `[begin_layer, end_layer)` over rows for which `can_run` is true."""
        recording = self._find(lengths)
        if recording is None:
            raise ValueError(f"no recorded shape holds rows of {list(lengths)} tokens")
        self._enter(hidden, lengths)
        recording.plan()
        for replay in recording.layers[begin_layer:end_layer]:
            replay()
        # A copy, since the next replay overwrites the buffer.
        return self._hidden[: len(hidden)].clone()

    def _find(self, lengths: Sequence[int]) -> _Recording | None:
        return next((it for shape, it in self._recordings.items() if shape.holds(lengths)), None)

    def _enter(self, hidden: Float[Tensor, "tokens width"], lengths: Sequence[int]) -> None:
        bounds = list(accumulate(lengths, initial=0))
        bounds += [bounds[-1]] * (len(self._bounds) - len(bounds))
        write_on_device(to_device(bounds, hidden.device, dtype=torch.int32), self._bounds)
        self._hidden[: len(hidden)].copy_(hidden)

    def _recorded(self, shape: Shape) -> _Recording:
        backbone, bounds = self._backbone, self._bounds
        hidden = self._hidden[: shape.num_tokens]
        attention = VarlenAttention(
            bounds=bounds, longest=shape.longest, num_tokens=shape.num_tokens
        )
        planned = list[RunLayer]()

        def plan() -> None:
            # Nothing of an earlier batch stays in the tokens that belong to no row.
            is_added = torch.arange(shape.num_tokens, device=backbone.device) >= bounds[-1:]
            hidden.masked_fill_(is_added.unsqueeze(1), 0.0)
            planned.append(architecture_of(backbone.config).plan_layers(attention, backbone.config))

        def run(index: int) -> None:
            hidden.copy_(_launch(backbone, planned[-1], hidden, index))

        replay_plan = self._record(plan)
        layers = tuple(self._record(partial(run, index)) for index in range(len(backbone.layers)))
        return _Recording(plan=replay_plan, layers=layers, run_layer=planned[-1])

    def _is_proven(self, recording: _Recording, shape: Shape) -> bool:
        """Whether each replay gives the states that the kernels give; waits for the device."""
        backbone = self._backbone
        lengths = _proof_lengths(shape, max_rows=len(self._bounds) - 1)
        attention = backbone.ops.attention(lengths, backbone.device)
        run_layer = architecture_of(backbone.config).plan_layers(attention, backbone.config)
        shape_of_rows = (sum(lengths), backbone.config.hidden_width)
        drawn = torch.randn(shape_of_rows, generator=torch.Generator().manual_seed(0))
        hidden = drawn.to(backbone.device, backbone.dtype)
        self._hidden.fill_(torch.nan)
        self._enter(hidden, lengths)
        recording.plan()
        proofs = list[Tensor]()
        for index, replay in enumerate(recording.layers):
            entered = self._hidden[: len(hidden)].clone()
            launched = _launch(backbone, run_layer, entered, index)
            replay()
            proofs.append(_are_same(self._hidden[: len(hidden)], launched, entered))
        self._hidden.zero_()
        return bool(torch.cat(proofs).all())


def trunk_graphs(backbone: Backbone, *, max_rows: int = DEFAULT_ROWS) -> TrunkGraphs | None:
    """Graphs for a backbone that is ready to serve; None if its kernels cannot be recorded."""
    is_recordable = backbone.ops.attention is varlen_attention
    if backbone.device.type != "cuda" or not is_recordable:
        return None
    return TrunkGraphs(backbone, record=cuda_recorder(backbone.device), max_rows=max_rows)


def cuda_recorder(device: torch.device) -> Record:
    """Recording by CUDA graphs on one device; the graphs share one stream and pool of memory."""
    pool = torch.cuda.graph_pool_handle()
    aside = torch.cuda.Stream(device)

    def record(run: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
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
                run()
        torch.cuda.current_stream(device).wait_stream(aside)
        return graph.replay

    return record


def _launch(
    backbone: Backbone, run_layer: RunLayer, hidden: Float[Tensor, "tokens width"], index: int
) -> Float[Tensor, "tokens width"]:
    """Run one frozen layer kernel by kernel."""
    frozen = mix_layer(backbone.layer(index), [], index=index, num_tokens=len(hidden))
    return run_layer(hidden, frozen, dropout=0.0)


def _proof_lengths(shape: Shape, *, max_rows: int) -> list[int]:
    """Short and long rows that leave some tokens of the shape to no row."""
    lengths, left = list[int](), shape.num_tokens - shape.num_tokens // 8
    for length in cycle((shape.longest, 1, 7, (shape.longest + 1) // 2)):
        if not left or len(lengths) == max_rows:
            return lengths
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths


def _are_same(
    replayed: Float[Tensor, "tokens width"],
    launched: Float[Tensor, "tokens width"],
    entered: Float[Tensor, "tokens width"],
) -> Bool[Tensor, " tokens"]:
    """Whether each token's state after a layer is the same up to the order of sums."""
    # A comparison with NaN or infinity is false, so such a state proves nothing.
    state = launched.float()
    allowed = CHANGE_TOLERANCE * _norms(state - entered) + STATE_TOLERANCE * _norms(state)
    return _norms(state - replayed) <= allowed


def _norms(states: Float[Tensor, "tokens width"]) -> Float[Tensor, " tokens"]:
    return states.square().sum(1).sqrt()


def _warn(reason: str) -> None:
    logger.warning(
        "recorded layers are off, and answers stay right: %s; start the server without "
        "NUNATAK_CUDA_GRAPHS",
        reason,
    )
