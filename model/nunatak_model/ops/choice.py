"""The operations of a device: fast kernels that are proven, and torch's own for the rest.

The fast kernels are torch's own on CUDA, and those of `nunatak-ops` on a CPU (`ops.native`).

A build of torch may lack a kernel, and a kernel may be wrong on a device that nobody has tested. So
each fast kernel is compared with the plain form before the server is ready: on its device, at the
widths and in the number format of the backbone. A kernel that fails or differs is replaced by the
next slower form, with one warning.

Axes: tokens = packed tokens of the rows, slots = places of a page, in, out = widths of a map,
qkv_width = query, key and value of all heads, width = the query heads side by side.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Activation
from nunatak_contract.errors import invalid_settings
from nunatak_model.config import BackboneConfig
from nunatak_model.ops import native
from nunatak_model.ops.attention import (
    Attention,
    PlanAttention,
    attention_by_runs,
    can_attend_varlen,
    padded_attention,
    varlen_attention,
)
from nunatak_model.ops.device import to_device
from nunatak_model.ops.grouped import (
    ALIGNMENT_BYTES,
    PlanGroups,
    SlotBanks,
    can_group,
    grouped_linear,
    kernel_groups,
    padded_groups,
)
from nunatak_model.ops.int8 import GROUP, PackIntegers, int8_product, packed_integers, quantized
from nunatak_model.ops.linear import activate, apply_linear, layer_norm
from nunatak_model.ops.low_rank import LoraUpdate
from nunatak_model.ops.rows import SumRows, sum_by_index, sum_by_segment
from nunatak_model.weights import Linear, Norm

PAGE_SHARE = 1 / 64
"""Largest share of a device's memory for one page of slots."""
TOLERANCE = 0.02
"""Largest difference of a token's results, as a share of their norm.

Half-precision formats round to a 256th; a kernel that reads a wrong token or weight is off by about
the whole norm.
"""
EXACT_TOLERANCE = 1e-4
"""The same for sums in float32."""
LENGTHS = (1, 2, 7, 7, 33, 129, 512)
"""Rows of the comparison: shorter and longer than the blocks of a kernel, and two of one length."""
MEMBERS = ((0, 3), (2, 33), (3, 129), (5, 900))
"""Slots of the comparison, each with its number of tokens. Slots 1 and 4 have none."""
NUM_SLOTS = 6
TASK_TOKENS, NARROW_WIDTHS = (1, 5, 24, 25, 49), (1, 8, 33, 64, 7)
"""Tasks of the comparison: their tokens, and the rank of the updates and size of the adapters."""
FEW = 7
INTEGER_TOKENS = (1, 2, 3, 4, 5, 6, 16, 17, 32, 33, sum(TASK_TOKENS))
"""Tokens of a product of integers: all remainders of its blocks of 3, 6, 16 and 32 tokens."""
EPSILON = 1e-5

FormT = TypeVar("FormT")
PlainT = TypeVar("PlainT")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """The operations of a device, one choice for each purpose.

    Plans do not depend on the choices.
    """

    attention: PlanAttention = attention_by_runs
    sum_rows: SumRows = sum_by_index
    groups: PlanGroups | None = None
    """Products grouped over tasks; None if each task runs alone."""
    banks: SlotBanks | None = None
    """Pages of slots, which the groups read; None if there are no groups."""
    tasks: native.TaskKernels = native.NO_TASK_KERNELS
    """Operators that serve all tasks of a layer without slots."""
    integers: PackIntegers | None = None
    """The layout of quantized weights for the native product; None for torch's product."""

    def fast_kernels(self) -> tuple[str, ...]:
        """The names of the kernels that stand in place of torch's own operations."""
        chosen = {
            "flash_attention": self.attention is varlen_attention,
            "padded_attention": self.attention is padded_attention,
            "segment_sums": self.sum_rows is sum_by_segment,
            "grouped_products": self.groups is kernel_groups,
            "padded_products": self.groups is padded_groups,
            "native_attention": self.attention is native.native_attention,
            "native_low_rank": self.tasks.low_rank is not None,
            "native_adapters": self.tasks.adapters is not None,
            "native_norms": self.tasks.norms is not None,
            "native_integers": self.integers is not None,
        }
        return tuple(name for name, is_chosen in chosen.items() if is_chosen)


PLAIN_OPS = Ops()
"""The operations that run on every device, also in training."""


def ops_for(
    config: BackboneConfig, *, dtype: torch.dtype, device: torch.device, is_quantized: bool = False
) -> Ops:
    """The operations that should be the fastest for such a backbone on this device; unproven."""
    if device.type == "cpu" and dtype in native.NATIVE_DTYPES and native.has_native_operators():
        # Terms for pairs of tokens need attention by runs.
        attention = attention_by_runs if config.has_pair_terms else native.native_attention
        integers = packed_integers if is_quantized else None
        return Ops(attention=attention, tasks=native.NATIVE_TASK_KERNELS, integers=integers)
    if device.type != "cuda":
        return PLAIN_OPS
    if config.has_pair_terms:
        # Their attention is by runs, and the products of distances serve each task by itself.
        return Ops(sum_rows=sum_by_segment)
    varlen = can_attend_varlen(dtype, device, head_width=config.head_width)
    _, memory = torch.cuda.mem_get_info(device)
    return Ops(
        attention=varlen_attention if varlen else padded_attention,
        sum_rows=sum_by_segment,
        groups=kernel_groups if can_group(config, dtype=dtype, device=device) else padded_groups,
        banks=SlotBanks(dtype=dtype, device=device, page_bytes=int(PAGE_SHARE * memory)),
    )


def proven_ops(
    ops: Ops,
    config: BackboneConfig,
    *,
    maps: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
) -> Ops:
    """The same operations, with the next slower form of each kernel that fails or differs.

    Args:
        ops: the proposed operations.
        config: the shape of the backbone.
        maps: output and input width of each linear map of a layer.
        dtype: the number format of the backbone.
        device: the device of the backbone.

    Raises:
        NunatakError: `invalid_settings`, a kernel has stopped the device.
    """
    forms = {ops.attention: "flash attention", padded_attention: "padded attention"}
    if ops.attention is native.native_attention:
        forms = {ops.attention: "the native attention"}
    attention = _first_proven(
        forms,  # pyrefly: ignore[bad-argument-type] - two dictionaries by turns
        plain=PLAIN_OPS.attention,
        proof=partial(_attends_alike, config=config, dtype=dtype, device=device),
        device=device,
    )
    sum_rows = _first_proven(
        {ops.sum_rows: "the sum by segments"},
        plain=PLAIN_OPS.sum_rows,
        proof=partial(_sums_alike, config=config, device=device),
        device=device,
    )
    groups = ops.groups and _first_proven(
        {ops.groups: "the grouped product", padded_groups: "the padded product"},
        plain=None,
        proof=partial(_groups_alike, maps=maps, dtype=dtype, device=device),
        device=device,
    )
    return Ops(
        attention=attention,
        sum_rows=sum_rows,
        groups=groups,
        banks=None if groups is None else ops.banks,
        tasks=_proven_task_kernels(ops.tasks, config, dtype=dtype, device=device),
        integers=ops.integers
        and _first_proven(
            {ops.integers: "the native product of integers"},
            plain=None,
            proof=partial(_multiplies_alike, maps=maps, dtype=dtype),
            device=device,
        ),
    )


def _proven_task_kernels(
    tasks: native.TaskKernels, config: BackboneConfig, *, dtype: torch.dtype, device: torch.device
) -> native.TaskKernels:
    def proven(form: FormT | None, name: str, proof: Callable[..., bool]) -> FormT | None:
        names: dict[FormT | None, str] = {form: name}
        run = partial(proof, width=config.hidden_width, dtype=dtype, device=device)
        return _first_proven(names, plain=None, proof=run, device=device)

    return native.TaskKernels(
        low_rank=proven(tasks.low_rank, "the native low-rank update", _updates_alike),
        adapters=proven(tasks.adapters, "the native adapter", _adapts_alike),
        norms=proven(tasks.norms, "the native norm", _normalises_alike),
    )


def _first_proven(
    names: Mapping[FormT, str],
    *,
    plain: PlainT,
    proof: Callable[[FormT], bool],
    device: torch.device,
) -> FormT | PlainT:
    """The first form that is proven. The plain form needs no proof, and is the last choice."""
    for form, name in names.items():
        if form is plain or _is_proven(name, partial(proof, form), device):
            return form
    return plain


def _is_proven(name: str, proof: Callable[[], bool], device: torch.device) -> bool:
    try:
        problem = None if proof() else "gives other results than torch's own operations"
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError) as error:
        # torch puts whole tensors into some messages.
        first = str(error).partition("\n")[0]
        problem = f"fails ({first:.200})"
        _check_alive(name, device, error)
    if problem is not None:
        logger.warning(
            "%s %s on %s; a slower form serves instead, and answers stay right",
            name, problem, device,
        )  # fmt: skip
    return problem is None


def _check_alive(name: str, device: torch.device, error: Exception) -> None:
    """Raise if the device computes nothing any more; no other operation could serve then."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        raise invalid_settings(
            f"{name} has stopped {device} ({error}); start again with "
            "NUNATAK_KERNELS=plain, which does not use it"
        ) from error


def _attends_alike(
    attention: PlanAttention, *, config: BackboneConfig, dtype: torch.dtype, device: torch.device
) -> bool:
    longest = native.LONGEST_ROW if attention is native.native_attention else max(LENGTHS)
    lengths = [min(length, config.max_tokens, longest) for length in LENGTHS]
    qkv = _random(sum(lengths), sum(config.qkv_widths), device=device).to(dtype)
    fast, plain = attention(lengths, device), attention_by_runs(lengths, device)
    if not torch.equal(fast.positions(), plain.positions()):
        return False
    pairs = [(fast.causal(), plain.causal()) if config.is_causal else (fast, plain)]
    if config.reach is not None:
        pairs.append((fast.narrow(config.reach), plain.narrow(config.reach)))
    tolerance = _tolerance(dtype)
    return all(
        _is_near(_attended(one, qkv, config), _attended(other, qkv.float(), config), tolerance)
        for one, other in pairs
    )


def _attended(
    attention: Attention, qkv: Float[Tensor, "tokens qkv_width"], config: BackboneConfig
) -> Float[Tensor, "tokens width"]:
    return attention(
        qkv, num_heads=config.num_heads, num_key_heads=config.num_shared_heads, dropout=0.0
    )


def _sums_alike(sum_rows: SumRows, *, config: BackboneConfig, device: torch.device) -> bool:
    hidden = _random(sum(LENGTHS), config.hidden_width, device=device)
    lengths = to_device(LENGTHS, device)
    return _is_near(sum_rows(hidden, lengths), sum_by_index(hidden, lengths), EXACT_TOLERANCE)


def _groups_alike(
    plan: PlanGroups, *, maps: Sequence[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> bool:
    groups = plan(MEMBERS, NUM_SLOTS, device)
    num_tokens = sum(count for _, count in MEMBERS)
    for out, into in _products(maps, dtype):
        weight = _random(NUM_SLOTS, out, into, device=device, seed=1).to(dtype)
        bias = _random(NUM_SLOTS, out, device=device, seed=2).to(dtype)
        for slot in set(range(NUM_SLOTS)) - {slot for slot, _ in MEMBERS}:
            # A slot without a version holds anything.
            weight[slot], bias[slot] = torch.nan, torch.nan
        # The tokens of a page are a range inside a batch.
        x = _random(1 + num_tokens, into, device=device).to(dtype)[1:]
        parts = torch.split(x.float(), [count for _, count in MEMBERS])
        loop = [
            part @ weight[slot].float().t() + bias[slot].float()
            for part, (slot, _) in zip(parts, MEMBERS, strict=True)
        ]
        if not _is_near(grouped_linear(x, weight, bias, groups), torch.cat(loop), TOLERANCE):
            return False
    return True


def _products(maps: Sequence[tuple[int, int]], dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """The maps themselves, and maps from and to the narrowest rank that a slot holds."""
    narrow = ALIGNMENT_BYTES // dtype.itemsize
    every = [it for out, into in maps for it in ((out, into), (narrow, into), (out, narrow))]
    yield from dict.fromkeys(every)


def _updates_alike(
    add: native.AddLowRank, *, width: int, dtype: torch.dtype, device: torch.device
) -> bool:
    x, spans = _task_tokens(width, dtype, device)
    seen = _random(len(x), 2 * width, device=device, seed=1).to(dtype)
    updates = [
        native.LowRank(
            tokens=tokens,
            first_column=number % 2 * width,
            update=LoraUpdate(
                down=_factor(rank, width, dtype, device),
                up=_factor(width, rank, dtype, device),
                scale=2.0,
            ),
        )
        for number, (tokens, rank) in enumerate(zip(spans, NARROW_WIDTHS, strict=True))
    ]
    expected = seen.float()
    for it in updates:
        columns = expected.narrow(1, it.first_column, width)
        it.update.apply(columns[it.tokens], x[it.tokens].float(), None)
    add(seen, x, updates)
    return _is_near(seen, expected, _tolerance(dtype))


def _adapts_alike(
    add: native.AddAdapters, *, width: int, dtype: torch.dtype, device: torch.device
) -> bool:
    x, spans = _task_tokens(width, dtype, device)
    adapters = [
        native.AdapterMaps(
            tokens=tokens,
            down=Linear(
                weight=_factor(size, width, dtype, device),
                bias=_random(size, device=device).to(dtype),
            ),
            up=Linear(
                weight=_factor(width, size, dtype, device),
                bias=_random(width, device=device).to(dtype),
            ),
        )
        for tokens, size in zip(spans, NARROW_WIDTHS, strict=True)
    ]
    return all(
        _adapts_alike_by(add, x, adapters, activation)
        for activation in native.ACTIVATIONS
        if activation is not None
    )


def _adapts_alike_by(
    add: native.AddAdapters,
    x: Tensor,
    adapters: Sequence[native.AdapterMaps],
    activation: Activation,
) -> bool:
    seen = _random(*x.shape, device=x.device, seed=1).to(x.dtype)
    expected = seen.float()
    for it in adapters:
        inner = activate(_exactly(x[it.tokens], it.down), activation)
        expected[it.tokens] += _exactly(inner, it.up)
    add(seen, x, adapters, activation)
    return _is_near(seen, expected, _tolerance(x.dtype))


def _normalises_alike(
    run: native.RunNorms, *, width: int, dtype: torch.dtype, device: torch.device
) -> bool:
    x, spans = _task_tokens(width, dtype, device)
    norms = [
        (
            tokens.stop,
            Norm(
                weight=_random(width, device=device, seed=number).to(dtype),
                bias=_random(width, device=device, seed=number + 1).to(dtype),
            ),
        )
        for number, tokens in enumerate(spans)
    ]
    parts = [
        layer_norm(
            x[tokens].float(),
            Norm(weight=norm.weight.float(), bias=None if norm.bias is None else norm.bias.float()),
            epsilon=EPSILON,
        )
        for tokens, (_, norm) in zip(spans, norms, strict=True)
    ]
    return _is_near(run(x, norms, EPSILON), torch.cat(parts), _tolerance(dtype))


def _multiplies_alike(
    pack: PackIntegers, *, maps: Sequence[tuple[int, int]], dtype: torch.dtype
) -> bool:
    cpu = torch.device("cpu")
    for out, into in dict.fromkeys(it for it in maps if it[1] % GROUP == 0):
        tensors = {"layers.0.weight": _random(out, into, device=cpu)}
        weight, scale = quantized(tensors).values()
        bias = _random(out, device=cpu, seed=2).to(dtype)
        # Numbers of one sign give the largest sums; some tokens are of the other sign.
        x = _random(sum(TASK_TOKENS), into, device=cpu, seed=3).abs_().to(dtype)
        x[::3] *= -1
        for own_bias in (None, bias):
            plain = Linear(weight=weight, bias=own_bias, scale=scale)
            served = replace(plain, weight=pack(weight))
            exact = int8_product(x.float(), plain)
            opposite = replace(
                served, weight=pack(-weight), bias=None if own_bias is None else -own_bias
            )
            both = native.integer_linear(x, [(FEW, served), (len(x), opposite)], None)
            expected = torch.cat([exact[:FEW], -exact[FEW:]])
            if not _is_near(both, expected, _tolerance(dtype)) or not _runs_alike(served, x, exact):
                return False
    return True


def _runs_alike(
    served: Linear, x: Float[Tensor, "tokens in"], exact: Float[Tensor, "tokens out"]
) -> bool:
    """Whether a native map gives the exact results: by activation, by number of tokens, and NaN."""
    near = partial(_is_near, tolerance=_tolerance(x.dtype))
    infinite = x[:1].clone()
    infinite[0, -1] = torch.inf
    for activation in native.ACTIVATIONS:
        run = partial(apply_linear, linear=served, activation=activation)
        expected = exact if activation is None else activate(exact, activation)
        if not near(run(x[:FEW]), expected[:FEW]) or not run(infinite).isnan().all():
            return False
    return all(near(apply_linear(x[-count:], served), exact[-count:]) for count in INTEGER_TOKENS)


def _task_tokens(
    width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "tokens width"], list[slice]]:
    """Tokens of several tasks, and the span of each task."""
    ends = list(accumulate(TASK_TOKENS, initial=0))
    x = _random(ends[-1], width, device=device).to(dtype)
    return x, [slice(begin, end) for begin, end in pairwise(ends)]


def _factor(
    out: int, into: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "out in"]:
    factor = _random(out, into, device=device, seed=out).div_(into**0.5).to(dtype)
    return native.laid_by_columns(factor)


def _exactly(x: Float[Tensor, "tokens in"], linear: Linear) -> Float[Tensor, "tokens out"]:
    bias = None if linear.bias is None else linear.bias.float()
    return functional.linear(x.float(), linear.weight.float(), bias)


def _tolerance(dtype: torch.dtype) -> float:
    return EXACT_TOLERANCE if dtype is torch.float32 else TOLERANCE


def _random(*shape: int, device: torch.device, seed: int = 0) -> Tensor:
    """The same numbers on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _is_near(
    seen: Float[Tensor, "tokens out"], expected: Float[Tensor, "tokens out"], tolerance: float
) -> bool:
    """Whether each token's results are equal up to rounding; waits for the device."""
    difference = (seen.float() - expected).square().sum(1)
    # A comparison with NaN is false, so a result that is no number proves nothing.
    return bool((difference <= tolerance**2 * expected.square().sum(1)).all())
