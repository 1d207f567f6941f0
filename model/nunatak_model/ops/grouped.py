"""Grouped products: the maps of many tasks, each over its own tokens, in a few kernels.

Torch's grouped kernel runs on two generations of devices, in one number format. Everywhere else the
tokens of each task are padded to one length, for batched products. Both forms read one tensor.

A grouped product reads its weights from one tensor, [slots, out, in]. Stacking the weights in every
batch would copy them every time, so a task version is written once, at loading, into a *slot* of
preallocated tensors. A *page* is one set of such tensors, with a fixed number of slots for versions
of one form. A page opens when a version needs it and ends with its last version. A slot becomes
free when no object refers to its version any more.

A batch refers to its versions until its answers are on the host, so no running kernel can read a
free slot.

Axes: tokens = packed tokens of the groups, cells = padded tokens (see `ops.rows`), slots = places
of a page, in, out = widths of a map.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import prod
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.nn import functional

from nunatak_model.config import BackboneConfig
from nunatak_model.ops.device import to_device_at_once, write_on_device
from nunatak_model.ops.rows import LAUNCH_CELLS, Padding, plan_padding
from nunatak_model.weights import Shapes

ALIGNMENT_BYTES = 16
"""The kernel needs operands whose widths are multiples of this."""
GROUPED_DTYPE = torch.bfloat16
GROUPED_CAPABILITIES = ((9, 0), (10, 0))
"""Compute capabilities for which torch builds the kernel (Hopper, Blackwell). torch also runs this
kernel on 10.3, for which it is not built. On other devices torch loops, and waits for the device to
read the bounds."""
FIRST_SLOTS, FIRST_PAGE_BYTES, MAX_SLOTS = 8, 128 * 1024**2, 64
"""Slots of a form's first page (as many as these bytes hold, from the first number to the last),
and of each further page when the earlier ones are full.

The first page of large versions is small, so that a form with one version takes little memory.
Other pages are large, because each page runs its own products.
"""
DEFAULT_PAGE_BYTES = 256 * 1024**2
SLOT_CELLS = 64
"""Cells that take about as long as reading the weights of a slot."""

StackT = TypeVar("StackT")
Arrange = Callable[[Mapping[str, Tensor]], StackT]


class Page(Generic[StackT]):
    """Tensors [slots, *shape] under the names of the parameters."""

    def __init__(self, *, number: int, tensors: Mapping[str, Tensor], stack: StackT) -> None:
        self.number = number
        self.tensors = tensors
        self.stack = stack
        self.num_slots = len(next(iter(tensors.values())))
        # Different threads append and pop. Both operations are atomic in the interpreter.
        self.free = deque(range(self.num_slots))


class Slot(Generic[StackT]):
    """One place in a page; free again when nothing refers to this object."""

    def __init__(self, page: Page[StackT], index: int) -> None:
        self.page = page
        self.index = index
        weakref.finalize(self, page.free.append, index).atexit = False

    @property
    def place(self) -> tuple[int, int]:
        return self.page.number, self.index

    def parameters(self) -> dict[str, Tensor]:
        """The content of the slot. The tensors are views, so no tensor may outlive the slot."""
        return {name: tensor[self.index] for name, tensor in self.page.tensors.items()}

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, target in self.parameters().items():
                write_on_device(parameters[name], target)


class SlotBanks:
    """All pages of one backbone; may be used by several threads at once."""

    def __init__(
        self, *, dtype: torch.dtype, device: torch.device, page_bytes: int = DEFAULT_PAGE_BYTES
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._page_bytes = page_bytes
        self._budget_bytes: int | None = None
        self._numbers = count()
        # Weak, so that a page ends with its last slot.
        self._pages: dict[Hashable, list[weakref.ref[Page[Any]]]] = {}
        self._lock = threading.Lock()

    def limit(self, budget_bytes: int) -> None:
        """Let all pages together take this many bytes.

        Later pages get only as many slots as the budget allows. A version for which no slot is left
        still gets a page of its own: the owner of the budget decides which versions are in memory.
        """
        self._budget_bytes = budget_bytes

    def take(self, form: Hashable, shapes: Shapes, arrange: Arrange[StackT]) -> Slot[StackT]:
        with self._lock:
            pages = self._open_pages(form)
            for page in pages:
                try:
                    return Slot(page, page.free.pop())
                except IndexError:
                    continue
            page = self._new_page(shapes, arrange, is_first=not pages)
            self._pages[form] = [weakref.ref(it) for it in (*pages, page)]
            return Slot(page, page.free.pop())

    def num_bytes(self) -> int:
        with self._lock:
            return self._open_bytes()

    def _open_bytes(self) -> int:
        pages = [page for form in self._pages for page in self._open_pages(form)]
        return sum(tensor.nbytes for page in pages for tensor in page.tensors.values())

    def _open_pages(self, form: Hashable) -> list[Page[Any]]:
        found = [reference() for reference in self._pages.get(form, ())]
        return [page for page in found if page is not None]

    def _new_page(
        self, shapes: Shapes, arrange: Arrange[StackT], *, is_first: bool
    ) -> Page[StackT]:
        slot_bytes = sum(prod(shape) for shape in shapes.values()) * self._dtype.itemsize
        num_slots = MAX_SLOTS
        if is_first:
            num_slots = max(FIRST_SLOTS, min(MAX_SLOTS, FIRST_PAGE_BYTES // slot_bytes))
        allowed = self._page_bytes
        if self._budget_bytes is not None:
            allowed = min(allowed, self._budget_bytes - self._open_bytes())
        num_slots = max(1, min(num_slots, allowed // slot_bytes))
        # Created outside inference mode, because later versions may write to the page in another
        # mode.
        with torch.inference_mode(mode=False):
            tensors = {
                name: torch.empty((num_slots, *shape), dtype=self._dtype, device=self._device)
                for name, shape in shapes.items()
            }
        return Page(number=next(self._numbers), tensors=tensors, stack=arrange(tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGroups(ABC):
    """The tokens of many versions of one page, in the order of their slots.

    Products run over cells: `pad` puts the tokens into cells, and `unpad` takes them out. Without
    padding, the cells are the tokens themselves.
    """

    slot_of: Int[Tensor, " tokens"]

    def pad(self, x: Float[Tensor, "tokens in"]) -> Float[Tensor, "cells in"]:
        return x

    @abstractmethod
    def product(
        self,
        x: Float[Tensor, "cells in"],
        weight: Float[Tensor, "slots out in"],
        bias: Float[Tensor, "slots out"] | None = None,
    ) -> Float[Tensor, "cells out"]:
        """Run each cell through the map of its slot. Cells without a token get any result.

        Semantics:
            for cell in cells:
                y[cell] = x[cell] @ weight[slot of cell].T + bias[slot of cell]
        """

    def unpad(self, y: Float[Tensor, "cells out"]) -> Float[Tensor, "tokens out"]:
        return y


PlanGroups = Callable[[Sequence[tuple[int, int]], int, torch.device], SlotGroups]
"""Prepares groups of (slot, number of tokens), in ascending order of slots, of a page with a number
of slots, on a device. A slot may stand more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGroups(SlotGroups):
    """Groups for torch's grouped kernel, without padding."""

    ends: Int32[Tensor, " slots"]
    """The end of each slot's tokens; a slot without tokens ends at its beginning."""

    def product(
        self,
        x: Float[Tensor, "tokens in"],
        weight: Float[Tensor, "slots out in"],
        bias: Float[Tensor, "slots out"] | None = None,
    ) -> Float[Tensor, "tokens out"]:
        y = functional.grouped_mm(x, weight.transpose(1, 2), offs=self.ends)
        return y if bias is None else y.add_(bias.index_select(0, self.slot_of))


def kernel_groups(
    members: Sequence[tuple[int, int]], num_slots: int, device: torch.device
) -> KernelGroups:
    counts = [0] * num_slots
    for slot, num_tokens in members:
        counts[slot] += num_tokens
    slot_of = [slot for slot, num_tokens in enumerate(counts) for _ in range(num_tokens)]
    ends, slots = to_device_at_once([list(accumulate(counts)), slot_of], device, dtype=torch.int32)
    return KernelGroups(ends=ends, slot_of=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBlock:
    """Neighbouring slots with the same number of cells each, which one batched product serves."""

    slots: slice
    cells: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedGroups(SlotGroups):
    """Groups for batched products, on every device and in every number format.

    The tokens of a slot lie in cells, padded to the most tokens of a slot of its block. A slot
    between two members takes part without tokens: its weights may be anything, because no token
    reads the results.
    """

    padding: Padding
    blocks: tuple[SlotBlock, ...]

    def pad(self, x: Float[Tensor, "tokens in"]) -> Float[Tensor, "cells in"]:
        return self.padding.pad(x)

    def product(
        self,
        x: Float[Tensor, "cells in"],
        weight: Float[Tensor, "slots out in"],
        bias: Float[Tensor, "slots out"] | None = None,
    ) -> Float[Tensor, "cells out"]:
        y = x.new_empty(len(x), weight.shape[1])
        for block in self.blocks:
            maps = weight[block.slots].transpose(1, 2)
            cells = x[block.cells].view(len(maps), -1, x.shape[1])
            results = y[block.cells].view(len(maps), -1, y.shape[1])
            if bias is None:
                torch.bmm(cells, maps, out=results)
            else:
                torch.baddbmm(bias[block.slots].unsqueeze(1), cells, maps, out=results)
        return y

    def unpad(self, y: Float[Tensor, "cells out"]) -> Float[Tensor, "tokens out"]:
        return self.padding.unpad(y)


def padded_groups(
    members: Sequence[tuple[int, int]], num_slots: int, device: torch.device
) -> PaddedGroups:
    del num_slots
    counts: dict[int, int] = {}
    for slot, num_tokens in members:
        counts[slot] = counts.get(slot, 0) + num_tokens
    cells_of, blocks, end = dict[int, range](), list[SlotBlock](), 0
    for slots, longest in _blocks(counts):
        begin = end
        for slot in slots:
            cells_of[slot] = range(end, end + longest)
            end += longest
        blocks.append(SlotBlock(slots=slice(slots.start, slots.stop), cells=slice(begin, end)))
    ends = accumulate(counts.values(), initial=0)
    pieces = [
        (range(begin, begin + num_tokens), cells_of[slot])
        for (slot, num_tokens), begin in zip(counts.items(), ends, strict=False)
    ]
    slot_of = [slot for slot, num_tokens in counts.items() for _ in range(num_tokens)]
    padding, slots_on_device = plan_padding(pieces, num_cells=end, device=device, extra=slot_of)
    return PaddedGroups(slot_of=slots_on_device, padding=padding, blocks=tuple(blocks))


def _blocks(counts: Mapping[int, int]) -> list[tuple[range, int]]:
    """Divide slots, given with their numbers of tokens, into blocks of neighbouring slots.

    Slots of one block save launches, and cost padding: a slot with far more tokens than the others
    is therefore a block of its own, and a wide gap ends a block. Each block comes with the cells of
    a slot. A slot inside two blocks has its tokens in the second.
    """
    by_size = sorted(counts, key=counts.__getitem__, reverse=True)
    sums = accumulate((counts[slot] for slot in by_size), initial=0)
    # The cells of each number of lone slots: their launches, their own tokens, and all others.
    costs = [
        alone * LAUNCH_CELLS + own_cells + (len(by_size) - alone) * counts[slot]
        for alone, (slot, own_cells) in enumerate(zip(by_size, sums, strict=False))
    ]
    num_alone = costs.index(min(costs))
    lone, shared = by_size[:num_alone], sorted(by_size[num_alone:])
    widest_gap = LAUNCH_CELLS // max(counts[by_size[num_alone]], SLOT_CELLS)
    starts = [
        index
        for index, slot in enumerate(shared)
        if index == 0 or slot - shared[index - 1] > widest_gap + 1
    ]
    blocks = list[tuple[range, int]]()
    for begin, end in pairwise([*starts, len(shared)]):
        members = shared[begin:end]
        longest = max(counts[slot] for slot in members)
        blocks.append((range(members[0], members[-1] + 1), longest))
    return [*blocks, *((range(slot, slot + 1), counts[slot]) for slot in lone)]


def grouped_linear(
    x: Float[Tensor, "tokens in"],
    weight: Float[Tensor, "slots out in"],
    bias: Float[Tensor, "slots out"] | None,
    groups: SlotGroups,
) -> Float[Tensor, "tokens out"]:
    """Run each token through the map of its slot (see `SlotGroups.product`)."""
    return groups.unpad(groups.product(groups.pad(x), weight, bias))


def grouped_layer_norm(
    x: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "slots width"],
    bias: Float[Tensor, "slots width"] | None,
    groups: SlotGroups,
    *,
    epsilon: float,
) -> Float[Tensor, "tokens width"]:
    """Normalise each token with the gain and offset of its slot.

    All steps run in float32 and round once, like the kernel for one gain.

    Semantics:
        for token in tokens:
            y[token] = normalised(x[token]) * weight[slot of token] + bias[slot of token]
    """
    y = functional.layer_norm(x.float(), x.shape[1:], eps=epsilon)
    y = y.mul_(weight.index_select(0, groups.slot_of))
    if bias is not None:
        y = y.add_(bias.index_select(0, groups.slot_of))
    return y.to(x.dtype)


def rounded_up(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def can_group(config: BackboneConfig, *, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether grouped products of this backbone's widths are one kernel on this CUDA device."""
    alignment = ALIGNMENT_BYTES // dtype.itemsize
    return (
        dtype is GROUPED_DTYPE
        and config.hidden_width % alignment == 0
        and config.intermediate_width % alignment == 0
        and all(width % alignment == 0 for width in config.qkv_widths)
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) in GROUPED_CAPABILITIES
    )
