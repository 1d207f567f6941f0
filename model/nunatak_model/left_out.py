"""What is known of a frozen weight that is not held: enough to tell whether another equals it."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One weight of a backbone layer that is not in memory."""

    dtype: torch.dtype
    digest: str
    """SHA-256 of its values in `dtype`."""
    num_bytes: int
    """That it would take as it is served."""

    def equals(self, tensor: Tensor) -> bool:
        """Whether a tensor has its values, rounded to its dtype."""
        return _digest(tensor.to(self.dtype)) == self.digest


def left_out_of(tensor: Tensor, *, num_bytes: int) -> LeftOut:
    """Return what is to be kept of a weight that will be dropped."""
    return LeftOut(dtype=tensor.dtype, digest=_digest(tensor), num_bytes=num_bytes)


def _digest(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(values.data).hexdigest()
