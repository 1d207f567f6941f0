"""The form in which tasks of many shapes share one page: ranks, sizes and labels rounded up.

Padding is zeros and changes no answer: what is added to a rank or a bottleneck leads nowhere, and
added labels are cut off. It is made once, when a version is loaded.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

import torch
from torch import Tensor

from nunatak_model.config import Pooling
from nunatak_model.heads import HeadKind, HeadSpec
from nunatak_model.methods import Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_model.weights import Shapes


def padded_method(method: Method, alignment: int) -> Method:
    """The method with its widths rounded up to a multiple of `alignment`.

    Updates of all scales share a form: theirs is part of `up` there, and 1 here.
    """
    match method:
        case Lora():
            rank = _rounded_up(method.rank, alignment)
            return replace(method, rank=rank, alpha=float(rank))
        case Bottleneck():
            return replace(method, size=_rounded_up(method.size, alignment))
        case TopK() | HeadOnly() | Full():
            return method
        case _:
            assert_never(method)


def padded_head(head: HeadSpec, alignment: int) -> HeadSpec:
    """The head with its labels rounded up to a multiple of `alignment`; kinds share a form."""
    kind = HeadKind.TOKEN_CLASSIFICATION
    if isinstance(head.pooling, Pooling):
        kind = HeadKind.SEQUENCE_CLASSIFICATION
    return replace(head, kind=kind, num_labels=_rounded_up(head.num_labels, alignment))


def padded_parameters(
    method: Method, parameters: Mapping[str, Tensor], shapes: Shapes, *, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Parameters of `method` and its head in the padded shapes, with scales of updates applied."""
    scale = method.scale if isinstance(method, Lora) else 1.0
    found = dict[str, Tensor]()
    for name, shape in shapes.items():
        tensor = parameters[name]
        if ".lora." in name and name.endswith(".up"):
            # Before it is rounded to the number format: the scale then costs no accuracy.
            tensor = tensor.float() * scale
        found[name] = _filled(tensor.to(dtype), shape)
    return found


def _filled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) == shape:
        return tensor
    filled = tensor.new_zeros(shape)
    filled[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return filled


def _rounded_up(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment
