"""Named tensors to safetensors bytes and back."""

from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from nunatak_model.errors import InvalidTensorsError


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialise tensors; equal tensors give equal bytes."""
    return save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})


def tensors_from_bytes(data: bytes) -> dict[str, Tensor]:
    """Read tensors; they own their memory.

    Raises:
        InvalidTensorsError: the bytes are not safetensors.
    """
    try:
        return load(data)
    except (SafetensorError, ValueError) as error:
        raise InvalidTensorsError(f"expected safetensors bytes: {error}") from error
