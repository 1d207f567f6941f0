# ruff: noqa: ANN401 - torch leaves the types of these hooks open
"""A CUDA device without a device: the real forward over torch's fake tensors.

Fake tensors have a device, a dtype, a shape and strides, but no numbers. Each operator checks its
operands as on a device, so the tests see a wrong device, dtype, shape or alignment, a number that
the host reads, and the number of launches. The tests see no results.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nunatak_model import Backbone, BackboneConfig
from nunatak_model.architectures import encoder_shapes
from nunatak_model.ops.attention import MASK_ALIGNMENT
from nunatak_model.ops.grouped import ALIGNMENT_BYTES
from nunatak_model.weights import embeddings_from, layer_from

MEMORY_BYTES = 80 * 2**30
COPIES = {"_to_copy", "copy_"}
NO_LAUNCHES = {"dropout", "detach", "empty", "empty_like", "new_empty", "lift_fresh", "device"}
"""Operators that start no kernel."""


def always(answer: object) -> Callable[[object], object]:
    """A function of a device that gives this answer."""

    def find(device: object) -> object:
        del device
        return answer

    return find


@contextmanager
def fake_cuda(capability: tuple[int, int]) -> Generator[None]:
    """Let torch find one CUDA device of this capability, whose tensors are fake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", always(capability))
        patch.setattr(torch.cuda, "mem_get_info", always((MEMORY_BYTES, MEMORY_BYTES)))
        patch.setattr(torch.cuda, "device", always(nullcontext()))
        patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        with FakeTensorMode(allow_non_fake_inputs=True), _Python():
            yield


class _Python(TorchFunctionMode):
    """The parts of torch's Python interface that need a real device even for fake tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return WITHOUT_A_DEVICE.get(func, func)(*args, **(kwargs or {}))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, **options: Any
) -> Tensor:
    """Attention by the kernel that devices without flash kernels choose; fakes choose none."""
    if not query.is_cuda:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask, **options
        )
    mask = attn_mask
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, 0.0)
        if mask.shape[-1] % MASK_ALIGNMENT:
            mask = mask.clone()
        mask = mask.expand(*query.shape[:3], key.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001 - no public name
        query, key, value, mask, compute_log_sumexp=False, **options
    )[0]


def _indexed(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` for numbers, slices, None and the ellipsis."""
    indices = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in indices:
        place = indices.index(Ellipsis)
        missing = tensor.dim() - sum(it is not None for it in indices) + 1
        indices[place : place + 1] = [slice(None)] * missing
    axis = 0
    for each in indices:
        match each:
            case None:
                tensor, axis = tensor.unsqueeze(axis), axis + 1
            case slice():
                begin, end, step = bounds = each.indices(tensor.shape[axis])
                if bounds != (0, tensor.shape[axis], 1):
                    tensor = torch.ops.aten.slice(tensor, axis, begin, end, step)
                axis += 1
            case int():
                tensor = torch.select(tensor, axis, each)
            case _:
                raise TypeError(f"an index by {type(each)} waits for the device")
    return tensor


def _write(tensor: Tensor, index: Any, values: Tensor | float) -> None:
    if isinstance(values, Tensor):
        torch.ops.aten.copy_(_indexed(tensor, index), values)
    else:
        torch.ops.aten.fill_(_indexed(tensor, index), values)


def _as_fake(numbers: Sequence[int], *, dtype: torch.dtype) -> Tensor:
    return torch.tensor(list(numbers), dtype=dtype)


def _same(tensor: Tensor) -> Tensor:
    return tensor


WITHOUT_A_DEVICE: Mapping[Any, Callable[..., Any]] = {
    torch.asarray: _as_fake,
    torch.Tensor.pin_memory: _same,
    torch.Tensor.contiguous: partial(torch.clone, memory_format=torch.contiguous_format),
    torch.Tensor.copy_: torch.ops.aten.copy_,
    torch.Tensor.__getitem__: _indexed,
    torch.Tensor.__setitem__: _write,
    functional.scaled_dot_product_attention: _attend,
}


class trusting(TorchFunctionMode):  # noqa: N801 - a context
    """While a version loads, the host reads numbers: all are finite, and all kernels agree."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in {torch.Tensor.__bool__, torch.equal}:
            return True
        if func is torch.isfinite:
            return args[0]
        return func(*args, **(kwargs or {}))


@dataclass(slots=True)
class Count:
    """The work of a forward pass."""

    launches: int = 0
    copies: int = 0
    """Copies from the host to the device."""
    operators: Counter[str] = field(default_factory=Counter[str])


class Launches(TorchDispatchMode):
    """Counts the launches on the device, and refuses all that makes the host wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        results = func(*args, **kwargs)
        operands = [it for it in tree_leaves((args, kwargs)) if isinstance(it, Tensor)]
        devices = {it.device.type for it in operands if it.dim()}
        made = {it.device.type for it in tree_leaves(results) if isinstance(it, Tensor)}
        if "cuda" not in devices | made:
            return results
        if name in COPIES and devices | made == {"cpu", "cuda"}:
            if made == {"cpu"}:
                raise AssertionError(f"{func} makes the host wait for the device")
            self.count.copies += 1
        elif "cpu" in devices:
            raise AssertionError(f"{func} reads a tensor of the host")
        elif name == "_flash_attention_forward":
            _check_flash(*args[:4])
        elif name == "_grouped_mm":
            _check_aligned(*args[:2])
        if not func.is_view and name not in NO_LAUNCHES:
            self.count.launches += 1
            self.count.operators[name] += 1
        return results


def _check_flash(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> None:
    """Raise for operands that the flash kernel refuses; its fake form does not look at them."""
    _check_aligned(query, key, value)
    for tensor in (query, key, value):
        assert tensor.dtype in {torch.bfloat16, torch.float16}, tensor.dtype
        assert tensor.stride(-1) == 1, tensor.stride()
        assert tensor.shape[-1] % 8 == 0, tensor.shape
        assert tensor.shape[-1] <= 256, tensor.shape
    assert bounds.dtype is torch.int32, bounds.dtype
    assert bounds.is_contiguous(), bounds.stride()


def _check_aligned(*operands: Tensor) -> None:
    """Raise for operands that begin between the steps in which a kernel reads memory.

    Torch checks strides alone. A kernel also needs the first element at a multiple of 16 bytes.
    """
    for tensor in operands:
        begin = tensor.storage_offset() * tensor.itemsize
        assert begin % ALIGNMENT_BYTES == 0, f"{begin} is no multiple of 16 bytes"


def on_fake_device(
    backbone: Backbone, *, dtype: torch.dtype, config: BackboneConfig | None = None
) -> Backbone:
    """The backbone on the fake device; `config` gives it another size."""
    config = config or backbone.config
    parameters: Mapping[str, Tensor] = {
        name: torch.empty(shape, dtype=dtype, device="cuda:0")
        for name, shape in encoder_shapes(config).items()
    }
    return replace(
        backbone,
        config=config,
        parameters=parameters,
        embeddings=embeddings_from(parameters),
        layers=tuple(layer_from(parameters, index) for index in range(config.num_layers)),
    )
