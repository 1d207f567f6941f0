"""Self-attention over packed rows of different lengths.

Attention has no task parameters, so all rows of a batch share it. Rows lie packed one after
another, and no token attends to another row. Three forms compute it:

- by runs, on every device and at every dtype: adjacent rows of equal length share a call of torch's
  own kernel;
- padded: rows of near lengths share a call, with a mask over the padding of each row;
- in one call for all rows, by CUDA's flash kernels (Dao 2023, arXiv:2307.08691), or on a CPU by
  the native operator (`ops.native`).

Groups of query heads may share a head of keys and values (Ainslie et al. 2023, arXiv:2305.13245).
In decoders a token sees only itself and earlier tokens.

Each pair of tokens may have a term in its score, by the distance of the tokens (MPNet), or by the
distance and the tokens (DeBERTa). The flash kernels take no such terms, so these rows run by runs.

Axes: tokens = packed tokens, cells = padded tokens, bounds = number of packed rows plus one,
qkv_width = query, key and value of all heads side by side, width = the query heads side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Int32, Shaped
from torch import Tensor
from torch.nn import functional

from nunatak_model.ops.device import to_device
from nunatak_model.ops.grouped import rounded_up
from nunatak_model.ops.rows import LAUNCH_CELLS, Padding, plan_padding

FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_CAPABILITY = (8, 0)
"""Compute capability from which torch's flash kernels run (Ampere)."""
FLASH_ALIGNMENT, FLASH_WIDEST_HEAD = 8, 256
"""Head widths that the kernels accept: multiples of the first, up to the second."""
FLASH_OPERATOR = "_flash_attention_forward"
Qkv = Float[Tensor, "tokens qkv_width"]
EVERYWHERE, BACKWARDS = (-1, -1), (-1, 0)
MASK_ALIGNMENT = 8
"""Kernels copy a mask whose rows have another length than a multiple of this."""
PAIRS_AT_ONCE = 2**19
"""Pairs of tokens whose terms are in memory at once, if one row has no more: two rows of 512
tokens, which take 25 MB for each tensor of 12 heads."""
PairTerms = Callable[[Tensor, Tensor], Tensor]
"""Gives the terms [rows or 1, heads, query, key] for queries and keys [rows, heads, length,
head_width]."""


@runtime_checkable
class Attention(Protocol):
    """The attention between the tokens of some packed rows, on any kernel."""

    def positions(self) -> Int[Tensor, " tokens"]:
        """Place of each token in its row, counted from 0."""
        ...

    def narrow(self, reach: int) -> "Attention":
        """Tokens see only `reach` tokens to either side."""
        ...

    def causal(self) -> "Attention":
        """Tokens see only themselves and earlier tokens."""
        ...

    def __call__(
        self, qkv: Qkv, *, num_heads: int, num_key_heads: int | None = None, dropout: float
    ) -> Float[Tensor, "tokens width"]: ...


PlanAttention = Callable[[Sequence[int], torch.device], Attention]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRun:
    """Neighbouring rows of one length."""

    num_rows: int
    length: int
    mask: Shaped[Tensor, "#rows #heads #queries length"] | None = None
    """True where a query may see a key, or numbers to be added to the scores."""
    is_causal: bool = False
    """Whether a query sees only its own and earlier keys; such a run has no mask."""

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.length


AttentionPlan = tuple[AttentionRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAttention:
    """Attention by torch's own kernel, one call for each run: on every device, at every dtype.

    With padding, rows of near lengths are one run. The padding of a row is copies of its first
    token, which no query of the row sees: their weight is exactly zero. So rows do not meet.
    """

    plan: AttentionPlan
    device: torch.device
    padding: Padding | None = None
    additive: dict[torch.dtype, AttentionPlan] = field(
        default_factory=dict[torch.dtype, AttentionPlan]
    )
    """With masks in the number format of scores: torch would convert them in each layer."""

    def positions(self) -> Int[Tensor, " tokens"]:
        parts = [
            torch.arange(run.length, device=self.device).repeat(run.num_rows) for run in self.plan
        ]
        places = torch.cat(parts)
        return places if self.padding is None else places.index_select(0, self.padding.cell_of)

    def narrow(self, reach: int) -> "RunAttention":
        plan = narrow(self.plan, reach=reach, device=self.device)
        return replace(self, plan=plan, additive={})

    def causal(self) -> "RunAttention":
        """The padding follows the tokens of a row, so no token sees it."""
        plan = tuple(replace(run, mask=None, is_causal=True) for run in self.plan)
        return replace(self, plan=plan, additive={})

    def __call__(
        self, qkv: Qkv, *, num_heads: int, num_key_heads: int | None = None, dropout: float
    ) -> Float[Tensor, "tokens width"]:
        plan = self.additive.get(qkv.dtype)
        if plan is None:
            plan = self.additive[qkv.dtype] = tuple(_additive(it, qkv.dtype) for it in self.plan)
        cells = attend(
            qkv if self.padding is None else self.padding.pad(qkv),
            plan,
            num_heads=num_heads,
            num_key_heads=num_key_heads,
            dropout=dropout,
        )
        return cells if self.padding is None else self.padding.unpad(cells)


def attention_by_runs(lengths: Sequence[int], device: torch.device) -> RunAttention:
    return RunAttention(plan=plan_attention(lengths), device=device)


def plan_attention(lengths: Sequence[int]) -> AttentionPlan:
    return tuple(
        AttentionRun(num_rows=sum(1 for _ in rows), length=length)
        for length, rows in groupby(lengths)
    )


def narrow(plan: AttentionPlan, *, reach: int, device: torch.device) -> AttentionPlan:
    """A mask over full products: results out of reach are computed and discarded."""
    return tuple(_narrow_run(run, reach, device) for run in plan)


def attend(
    qkv: Qkv,
    plan: AttentionPlan,
    *,
    num_heads: int,
    num_key_heads: int | None = None,
    scale: float | None = None,
    terms: PairTerms | None = None,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Let the tokens of each row attend to one another.

    `num_key_heads` is the number of heads of keys, and of values; None means `num_heads`. `scale`
    is by default `1 / sqrt(head width)`. Runs with terms have no mask.

    Semantics:
        for row in rows:
            q, k, v = the heads of qkv[row]; each k and v stands for a group of neighbouring q
            out[row] = softmax(scale * q @ k.T + terms(q, k)) @ v        for each head
        where a query of a causal run sees only its own and earlier keys
    """
    shared = num_key_heads or num_heads
    width = qkv.shape[1] // (num_heads + 2 * shared)
    outputs = list[Tensor]()
    runs = plan if terms is None else [part for run in plan for part in _parts(run)]
    parts = torch.split(qkv, [run.num_tokens for run in runs])
    for run, rows in zip(runs, parts, strict=True):
        heads = rows.view(run.num_rows, run.length, -1, width).transpose(1, 2)
        query, key, value = torch.split(heads, [num_heads, shared, shared], dim=1)
        if shared != num_heads:
            # On the CPU, the fast kernel takes no shared heads.
            group = num_heads // shared
            key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        context = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=run.mask if terms is None else terms(query, key),
            dropout_p=dropout,
            is_causal=run.is_causal,
            scale=scale,
        )
        outputs.append(context.transpose(1, 2).reshape(run.num_tokens, num_heads * width))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def by_runs(attention: Attention) -> RunAttention:
    if not isinstance(attention, RunAttention) or attention.padding is not None:
        raise TypeError(f"only attention by runs takes terms for pairs, got {attention!r:.200}")
    return attention


def runs_within(plan: AttentionPlan, tokens: slice) -> AttentionPlan:
    """The runs of the rows in these tokens, which begin and end with a row."""
    found, start = list[AttentionRun](), 0
    for run in plan:
        begin, end = max(start, tokens.start), min(start + run.num_tokens, tokens.stop)
        if begin < end:
            found.append(replace(run, num_rows=(end - begin) // run.length))
        start += run.num_tokens
    return tuple(found)


def attend_in_pieces(
    qkv: Qkv,
    plan: AttentionPlan,
    pieces: Iterable[tuple[slice, PairTerms | None]],
    *,
    num_heads: int,
    scale: float,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Run `attend` on `pieces`: adjacent tokens, with the terms of their pairs."""
    parts = [
        attend(
            qkv[tokens],
            runs_within(plan, tokens),
            num_heads=num_heads,
            scale=scale,
            terms=terms,
            dropout=dropout,
        )
        for tokens, terms in pieces
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _parts(run: AttentionRun) -> Iterator[AttentionRun]:
    """The rows of a run in parts whose terms fit the limit; at least one row each."""
    most = max(1, PAIRS_AT_ONCE // run.length**2)
    for start in range(0, run.num_rows, most):
        yield replace(run, num_rows=min(most, run.num_rows - start))


def distances(longest: int) -> range:
    """The distances query - key in rows of up to `longest` tokens, from the largest down."""
    return range(longest - 1, -longest, -1)


def by_pair(
    values: Shaped[Tensor, "*heads distances"], length: int
) -> Shaped[Tensor, "*heads length length"]:
    """Arrange one value for each of `distances(longest)` by query and key of a row.

    Semantics:
        for query in range(length), key in range(length):
            out[..., query, key] = the value of the distance query - key
    """
    longest = (values.shape[-1] + 1) // 2
    near = values[..., longest - length : longest + length - 1]
    return near.unfold(-1, length, 1).flip(-2)


def _narrow_run(run: AttentionRun, reach: int, device: torch.device) -> AttentionRun:
    if run.length <= reach + 1:
        return run
    places = torch.arange(run.length, device=device)
    is_near = ((places.unsqueeze(1) - places).abs() <= reach)[None, None]
    return replace(run, mask=is_near if run.mask is None else is_near & run.mask)


def _additive(run: AttentionRun, dtype: torch.dtype) -> AttentionRun:
    if run.mask is None:
        return run
    zeros = torch.zeros_like(run.mask, dtype=dtype)
    return replace(run, mask=zeros.masked_fill_(run.mask.logical_not(), -torch.inf))


def padded_attention(lengths: Sequence[int], device: torch.device) -> RunAttention:
    """Prepare attention over rows of near lengths together; by runs, if that takes no more calls.

    The longest rows come first. A block takes shorter rows while their padding costs less than a
    launch, or while they are at least half as long as the longest.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    blocks, padded = list[list[int]](), 0
    for row in order:
        longest = lengths[blocks[-1][0]] if blocks else 0
        padded += longest - lengths[row]
        if not blocks or (padded > LAUNCH_CELLS and 2 * lengths[row] < longest):
            blocks.append([])
            padded = 0
        blocks[-1].append(row)
    if len(plan_attention(lengths)) <= len(blocks):
        return attention_by_runs(lengths, device)
    offsets = tuple(accumulate(lengths, initial=0))
    cells_of, sizes, end = dict[int, range](), list[int](), 0
    for block in blocks:
        sizes.append(rounded_up(lengths[block[0]], MASK_ALIGNMENT))
        for row in block:
            cells_of[row] = range(end, end + sizes[-1])
            end += sizes[-1]
    padding, ordered = plan_padding(
        [(range(*offsets[row : row + 2]), cells_of[row]) for row in range(len(lengths))],
        num_cells=end,
        device=device,
        extra=[lengths[row] for row in order],
    )
    runs = list[AttentionRun]()
    parts = torch.split(ordered, [len(block) for block in blocks])
    for size, part in zip(sizes, parts, strict=True):
        is_own = torch.arange(size, device=device) < part.unsqueeze(1)
        runs.append(AttentionRun(num_rows=len(part), length=size, mask=is_own[:, None, None]))
    return RunAttention(padding=padding, plan=tuple(runs), device=device)


VarlenKernel = Callable[[Tensor, Tensor, Tensor, Tensor, int, tuple[int, int]], Tensor]
"""Attention of queries [tokens, heads, head_width] over keys and values [tokens, key_heads,
head_width], by bounds, longest row and window; returns the shape of the queries."""


def _flash_attention(
    query: Float[Tensor, "tokens heads head_width"],
    key: Float[Tensor, "tokens key_heads head_width"],
    value: Float[Tensor, "tokens key_heads head_width"],
    bounds: Int32[Tensor, " bounds"],
    longest: int,
    window: tuple[int, int],
) -> Float[Tensor, "tokens heads head_width"]:
    """Call the flash kernels directly, because torch's function costs more than the call.

    Only a build without this operator needs the function. The arguments are those of torch 2.11,
    which later versions accept.
    """
    operator = getattr(torch.ops.aten, FLASH_OPERATOR, None)
    if operator is not None:
        left, right = window
        return operator(
            query, key, value, bounds, bounds, longest, longest,
            dropout_p=0.0, is_causal=False, return_debug_mask=False,
            scale=None, window_size_left=left, window_size_right=right,
        )[0]  # fmt: skip
    # This module imports torch's compiler, which takes as long to import as torch itself.
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - for some builds alone

    # A version without shared heads raises an error for this option, and another form of attention
    # serves instead.
    options: dict[str, Any] = {} if key.shape == query.shape else {"enable_gqa": True}
    context = varlen_attn(
        query, key, value, bounds, bounds, longest, longest, window_size=window, **options
    )
    if isinstance(context, tuple):
        raise TypeError("varlen_attn gave more than was asked for")
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenAttention:
    """Attention in one call: rows by their bounds, which lie on the device."""

    bounds: Int32[Tensor, " bounds"]
    """First token of each row, and the number of all tokens at the end."""
    longest: int
    """Upper bound of the row lengths. A larger bound gives the same result with more blocks."""
    num_tokens: int
    kernel: VarlenKernel = _flash_attention
    window: tuple[int, int] = EVERYWHERE
    """Neighbours seen to the left and to the right; -1 means all of them."""

    def positions(self) -> Int[Tensor, " tokens"]:
        places = torch.arange(self.num_tokens, device=self.bounds.device)
        row = torch.searchsorted(self.bounds, places, right=True) - 1
        return places - self.bounds.index_select(0, row)

    def narrow(self, reach: int) -> "VarlenAttention":
        return replace(self, window=(reach, reach))

    def causal(self) -> "VarlenAttention":
        return replace(self, window=BACKWARDS)

    def __call__(
        self, qkv: Qkv, *, num_heads: int, num_key_heads: int | None = None, dropout: float
    ) -> Float[Tensor, "tokens width"]:
        if dropout > 0.0:
            raise ValueError(
                f"the kernels that serve have no dropout, got {dropout}; "
                "train on a backbone that is not packed"
            )
        shared = num_key_heads or num_heads
        heads = qkv.view(self.num_tokens, num_heads + 2 * shared, -1)
        query, key, value = heads.split_with_sizes([num_heads, shared, shared], 1)
        context = self.kernel(query, key, value, self.bounds, self.longest, self.window)
        return context.flatten(1)


def varlen_attention(
    lengths: Sequence[int], device: torch.device, *, kernel: VarlenKernel = _flash_attention
) -> VarlenAttention:
    bounds = list(accumulate(lengths, initial=0))
    return VarlenAttention(
        bounds=to_device(bounds, device, dtype=torch.int32),
        longest=max(lengths),
        num_tokens=bounds[-1],
        kernel=kernel,
    )


def can_attend_varlen(dtype: torch.dtype, device: torch.device, *, head_width: int) -> bool:
    """Whether this CUDA device has flash kernels for such heads."""
    return (
        dtype in FLASH_DTYPES
        and head_width % FLASH_ALIGNMENT == 0
        and head_width <= FLASH_WIDEST_HEAD
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY
    )
