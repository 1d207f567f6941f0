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
    proof = _Proof(config=config, maps=maps, dtype=dtype, device=device)
    forms: dict[PlanAttention, str] = {ops.attention: "the native attention"}
    if ops.attention is not native.native_attention:
        forms = {ops.attention: "flash attention", padded_attention: "padded attention"}
    attention = proof.first(forms, proof.attends_alike, plain=PLAIN_OPS.attention)
    groups = ops.groups and proof.first(
        {ops.groups: "the grouped product", padded_groups: "the padded product"},
        proof.groups_alike,
        plain=None,
    )
    return Ops(
        attention=attention,
        sum_rows=proof.first(
            {ops.sum_rows: "the sum by segments"}, proof.sums_alike, plain=PLAIN_OPS.sum_rows
        ),
        groups=groups,
        banks=None if groups is None else ops.banks,
        tasks=native.TaskKernels(
            low_rank=proof.first(
                {ops.tasks.low_rank: "the native low-rank update"}, proof.updates_alike, plain=None
            ),
            adapters=proof.first(
                {ops.tasks.adapters: "the native adapter"}, proof.adapts_alike, plain=None
            ),
            norms=proof.first(
                {ops.tasks.norms: "the native norm"}, proof.normalises_alike, plain=None
            ),
        ),
        integers=proof.first(
            {ops.integers: "the native product of integers"}, proof.multiplies_alike, plain=None
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
    """The comparisons of kernels with the plain forms, at the shape of one backbone."""

    config: BackboneConfig
    maps: Sequence[tuple[int, int]]
    dtype: torch.dtype
    device: torch.device

    def first(
        self, names: Mapping[FormT, str], is_alike: Callable[..., bool], *, plain: PlainT
    ) -> FormT | PlainT:
        """The first form that is proven. The plain form needs no proof, and is the last choice."""
        for form, name in names.items():
            if form is plain or self._is_proven(name, partial(is_alike, form)):
                return form
        return plain

    def _is_proven(self, name: str, is_alike: Callable[[], bool]) -> bool:
        try:
            problem = None if is_alike() else "gives other results than torch's own operations"
        except (RuntimeError, TypeError, ValueError, AttributeError, ImportError) as error:
            # torch puts whole tensors into some messages.
            first = str(error).partition("\n")[0]
            problem = f"fails ({first:.200})"
            _check_alive(name, self.device, error)
        if problem is not None:
            logger.warning(
                "%s %s on %s; a slower form serves instead, and answers stay right",
                name, problem, self.device,
            )  # fmt: skip
        return problem is None

    def attends_alike(self, attention: PlanAttention) -> bool:
        config = self.config
        longest = native.LONGEST_ROW if attention is native.native_attention else max(LENGTHS)
        lengths = [min(length, config.max_tokens, longest) for length in LENGTHS]
        qkv = self._random(sum(lengths), sum(config.qkv_widths))
        fast, plain = attention(lengths, self.device), attention_by_runs(lengths, self.device)
        if not torch.equal(fast.positions(), plain.positions()):
            return False
        pairs = [(fast.causal(), plain.causal()) if config.is_causal else (fast, plain)]
        if config.reach is not None:
            pairs.append((fast.narrow(config.reach), plain.narrow(config.reach)))
        return all(
            self._is_near(self._attended(one, qkv), self._attended(other, qkv.float()))
            for one, other in pairs
        )

    def _attended(
        self, attention: Attention, qkv: Float[Tensor, "tokens qkv_width"]
    ) -> Float[Tensor, "tokens width"]:
        num_heads, num_key_heads = self.config.num_heads, self.config.num_shared_heads
        return attention(qkv, num_heads=num_heads, num_key_heads=num_key_heads, dropout=0.0)

    def sums_alike(self, sum_rows: SumRows) -> bool:
        hidden = self._random(sum(LENGTHS), self.config.hidden_width, dtype=torch.float32)
        lengths = to_device(LENGTHS, self.device)
        return _is_near(sum_rows(hidden, lengths), sum_by_index(hidden, lengths), EXACT_TOLERANCE)

    def groups_alike(self, plan: PlanGroups) -> bool:
        groups = plan(MEMBERS, NUM_SLOTS, self.device)
        num_tokens = sum(count for _, count in MEMBERS)
        for out, into in self._products():
            weight = self._random(NUM_SLOTS, out, into, seed=1)
            bias = self._random(NUM_SLOTS, out, seed=2)
            for slot in set(range(NUM_SLOTS)) - {slot for slot, _ in MEMBERS}:
                # A slot without a version holds anything.
                weight[slot], bias[slot] = torch.nan, torch.nan
            # The tokens of a page are a range inside a batch.
            x = self._random(1 + num_tokens, into)[1:]
            parts = torch.split(x.float(), [count for _, count in MEMBERS])
            loop = [
                part @ weight[slot].float().t() + bias[slot].float()
                for part, (slot, _) in zip(parts, MEMBERS, strict=True)
            ]
            if not _is_near(grouped_linear(x, weight, bias, groups), torch.cat(loop), TOLERANCE):
                return False
        return True

    def _products(self) -> Iterator[tuple[int, int]]:
        """The maps themselves, and maps from and to the narrowest rank that a slot holds."""
        narrow = ALIGNMENT_BYTES // self.dtype.itemsize
        every = [
            it for out, into in self.maps for it in ((out, into), (narrow, into), (out, narrow))
        ]
        yield from dict.fromkeys(every)

    def updates_alike(self, add: native.AddLowRank) -> bool:
        width = self.config.hidden_width
        x, spans = self._task_tokens()
        seen = self._random(len(x), 2 * width, seed=1)
        updates = [
            native.LowRank(
                tokens=tokens,
                first_column=number % 2 * width,
                update=LoraUpdate(
                    down=self._factor(rank, width), up=self._factor(width, rank), scale=2.0
                ),
            )
            for number, (tokens, rank) in enumerate(zip(spans, NARROW_WIDTHS, strict=True))
        ]
        expected = seen.float()
        for it in updates:
            columns = expected.narrow(1, it.first_column, width)
            it.update.apply(columns[it.tokens], x[it.tokens].float(), None)
        add(seen, x, updates)
        return self._is_near(seen, expected)

    def adapts_alike(self, add: native.AddAdapters) -> bool:
        x, spans = self._task_tokens()
        adapters = [
            native.AdapterMaps(
                tokens=tokens,
                down=self._linear(size, self.config.hidden_width),
                up=self._linear(self.config.hidden_width, size),
            )
            for tokens, size in zip(spans, NARROW_WIDTHS, strict=True)
        ]
        return all(self._adapts_alike_by(add, x, adapters, it) for it in Activation)

    def _adapts_alike_by(
        self,
        add: native.AddAdapters,
        x: Tensor,
        adapters: Sequence[native.AdapterMaps],
        activation: Activation,
    ) -> bool:
        seen = self._random(*x.shape, seed=1)
        expected = seen.float()
        for it in adapters:
            inner = activate(_exactly(x[it.tokens], it.down), activation)
            expected[it.tokens] += _exactly(inner, it.up)
        add(seen, x, adapters, activation)
        return self._is_near(seen, expected)

    def normalises_alike(self, run: native.RunNorms) -> bool:
        width = self.config.hidden_width
        x, spans = self._task_tokens()
        norms, parts = list[tuple[int, Norm]](), list[Tensor]()
        for number, tokens in enumerate(spans):
            gain, offset = self._random(width, seed=number), self._random(width, seed=number + 1)
            norms.append((tokens.stop, Norm(weight=gain, bias=offset)))
            exact = Norm(weight=gain.float(), bias=offset.float())
            parts.append(layer_norm(x[tokens].float(), exact, epsilon=EPSILON))
        return self._is_near(run(x, norms, EPSILON), torch.cat(parts))

    def multiplies_alike(self, pack: PackIntegers) -> bool:
        for out, into in dict.fromkeys(it for it in self.maps if it[1] % GROUP == 0):
            tensors = {"layers.0.weight": self._random(out, into, dtype=torch.float32)}
            weight, scale = quantized(tensors).values()
            bias = self._random(out, seed=2)
            # Numbers of one sign give the largest sums; some tokens are of the other sign.
            x = self._random(sum(TASK_TOKENS), into, seed=3).abs_()
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
                if not self._is_near(both, expected) or not self._runs_alike(served, x, exact):
                    return False
        return True

    def _runs_alike(
        self, served: Linear, x: Float[Tensor, "tokens in"], exact: Float[Tensor, "tokens out"]
    ) -> bool:
        """Whether a native map is exact: by activation, by number of tokens, and NaN."""
        infinite = x[:1].clone()
        infinite[0, -1] = torch.inf
        for activation in native.ACTIVATIONS:
            run = partial(apply_linear, linear=served, activation=activation)
            expected = exact if activation is None else activate(exact, activation)
            if not self._is_near(run(x[:FEW]), expected[:FEW]) or not run(infinite).isnan().all():
                return False
        return all(
            self._is_near(apply_linear(x[-count:], served), exact[-count:])
            for count in INTEGER_TOKENS
        )

    def _task_tokens(self) -> tuple[Float[Tensor, "tokens width"], list[slice]]:
        """Tokens of several tasks, and the span of each task."""
        ends = list(accumulate(TASK_TOKENS, initial=0))
        x = self._random(ends[-1], self.config.hidden_width)
        return x, [slice(begin, end) for begin, end in pairwise(ends)]

    def _linear(self, out: int, into: int) -> Linear:
        return Linear(weight=self._factor(out, into), bias=self._random(out))

    def _factor(self, out: int, into: int) -> Float[Tensor, "out in"]:
        factor = self._random(out, into, seed=out, dtype=torch.float32).div_(into**0.5)
        return native.laid_by_columns(factor.to(self.dtype))

    def _random(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """The same numbers on every device."""
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return numbers.to(self.device).to(dtype or self.dtype)

    def _is_near(
        self, seen: Float[Tensor, "tokens out"], expected: Float[Tensor, "tokens out"]
    ) -> bool:
        is_exact = self.dtype is torch.float32
        return _is_near(seen, expected, EXACT_TOLERANCE if is_exact else TOLERANCE)


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


def _exactly(x: Float[Tensor, "tokens in"], linear: Linear) -> Float[Tensor, "tokens out"]:
    bias = None if linear.bias is None else linear.bias.float()
    return functional.linear(x.float(), linear.weight.float(), bias)


def _is_near(
    seen: Float[Tensor, "tokens out"], expected: Float[Tensor, "tokens out"], tolerance: float
) -> bool:
    """Whether each token's results are equal up to rounding; waits for the device."""
    difference = (seen.float() - expected).square().sum(1)
    # A comparison with NaN is false, so a result that is no number proves nothing.
    return bool((difference <= tolerance**2 * expected.square().sum(1)).all())
