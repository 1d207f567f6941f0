"""Slots: fixed places on a device for what tasks own, so that one kernel reads many tasks at once.

A grouped product reads its weights from one tensor, [slots, out, in]. Stacking those of a batch
would copy them every time; so a task version is written once, when it is loaded, into a slot of
tensors that were allocated before, and stays there. A *page* is one such set of tensors, of a fixed
number of slots for versions of one form. Pages are opened when versions come, and end with the last
version in them; a slot is free again when the version that had it is no longer referred to.

A batch refers to its versions until its answers are on the host, so no kernel that runs can still
read a slot that is free.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from math import prod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from nunatak_model.ops.device import write_on_device
from nunatak_model.weights import Shapes

FIRST_SLOTS, MAX_SLOTS = 8, 64
"""Of a form's first page, and of those that follow when it is full.

A form of one version should not hold the room of many; each page has products of its own, so many
versions should not lie in many pages.
"""
DEFAULT_PAGE_BYTES = 256 * 1024**2

StackT = TypeVar("StackT")
Arrange = Callable[[Mapping[str, Tensor]], StackT]
"""Makes of named tensors what a kernel takes: layers, or a head."""


class Page(Generic[StackT]):
    """Tensors [slots, *shape] under the names of the parameters."""

    def __init__(self, *, number: int, tensors: Mapping[str, Tensor], stack: StackT) -> None:
        self.number = number
        """Order among all pages of a process."""
        self.tensors = tensors
        self.stack = stack
        """The same tensors as the kernels take them."""
        self.num_slots = len(next(iter(tensors.values())))
        # Appended and popped by different threads; each is one step for the interpreter.
        self.free = deque(range(self.num_slots))


class Slot(Generic[StackT]):
    """One place in a page; free again when nothing refers to this object."""

    def __init__(self, page: Page[StackT], index: int) -> None:
        self.page = page
        self.index = index
        weakref.finalize(self, page.free.append, index).atexit = False

    @property
    def place(self) -> tuple[int, int]:
        """Page and index: the order in which grouped kernels read."""
        return self.page.number, self.index

    def parameters(self) -> dict[str, Tensor]:
        """What lies in the slot; the tensors are views, to be kept no longer than the slot."""
        return {name: tensor[self.index] for name, tensor in self.page.tensors.items()}

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        """Fill the slot with parameters of the page's names, shapes and number format."""
        with torch.no_grad():
            for name, target in self.parameters().items():
                write_on_device(parameters[name], target)


class SlotBanks:
    """All pages of one backbone; may be used by several threads at once."""

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._page_bytes = page_bytes
        self._numbers = count()
        # Weak, so that a page ends with its last slot.
        self._pages: dict[Hashable, list[weakref.ref[Page[Any]]]] = {}
        self._lock = threading.Lock()

    def take(self, form: Hashable, shapes: Shapes, arrange: Arrange[StackT]) -> Slot[StackT]:
        """Take a free slot for parameters of this form, which decides shapes and arrangement."""
        with self._lock:
            pages = self._open_pages(form)
            for page in pages:
                try:
                    return Slot(page, page.free.pop())
                except IndexError:
                    continue
            wanted = MAX_SLOTS if pages else FIRST_SLOTS
            page = self._new_page(shapes, arrange, num_slots=wanted)
            self._pages[form] = [weakref.ref(it) for it in (*pages, page)]
            return Slot(page, page.free.pop())

    def num_bytes(self) -> int:
        """Bytes of all open pages, whether their slots are taken or free."""
        with self._lock:
            pages = [page for form in self._pages for page in self._open_pages(form)]
        return sum(tensor.nbytes for page in pages for tensor in page.tensors.values())

    def _open_pages(self, form: Hashable) -> list[Page[Any]]:
        found = [reference() for reference in self._pages.get(form, ())]
        return [page for page in found if page is not None]

    def _new_page(
        self, shapes: Shapes, arrange: Arrange[StackT], *, num_slots: int
    ) -> Page[StackT]:
        slot_bytes = sum(prod(shape) for shape in shapes.values()) * self._dtype.itemsize
        num_slots = min(num_slots, max(1, self._page_bytes // slot_bytes))
        # Whatever mode the first version of a page comes in, later ones write to it in another.
        with torch.inference_mode(mode=False):
            tensors = {
                name: torch.empty((num_slots, *shape), dtype=self._dtype, device=self._device)
                for name, shape in shapes.items()
            }
        return Page(number=next(self._numbers), tensors=tensors, stack=arrange(tensors))
