"""Where the trunk states of data sets come from."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import version
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model import Backbone, Encoding, TrunkSource, TrunkStates
from nunatak_training.trunk.inputs import InputSet
from nunatak_training.trunk.states import Progress

FORMAT = "1"
"""Rises when the order of a set, or what the forward makes of it, changes within a release."""


class TrunkStore(Protocol):
    """Gives the trunk states of a data set, computing them where nobody has yet."""

    def states(
        self,
        backbone: Backbone,
        encodings: Iterable[Encoding],
        *,
        depth: int,
        progress: Progress,
    ) -> TrunkStates:
        """Return the states of all encodings at a depth of at least 1.

        Raises:
            CacheError: they cannot be written where they should be.
        """
        ...


class JoinedStates:
    """Several sets read as one; the first that holds an input answers for it."""

    def __init__(self, parts: Sequence[TrunkStates]) -> None:
        self._parts = tuple(parts)

    def depths(self, source: TrunkSource) -> Collection[int]:
        """Return the depths of the first part that holds the input."""
        return next(filter(None, (part.depths(source) for part in self._parts)), ())

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        """Return the state as the first part that holds the input has it.

        Raises:
            KeyError: none holds it.
        """
        for part in self._parts:
            if depth in part.depths(source):
                return part.read(source, depth)
        raise KeyError(source, depth)

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Offer it to all parts."""
        for part in self._parts:
            part.offer(source, depth, state)


def states_key(backbone: Backbone, inputs: InputSet, depth: int) -> str:
    """SHA-256 over all that the bits of a set's states depend on."""
    parts = (FORMAT, backbone.digest, numerics_of(backbone), inputs.digest, str(depth))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def numerics_of(backbone: Backbone) -> str:
    """Everything but weights and inputs that the bits of a trunk state depend on."""
    device = backbone.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    layout = "packed" if backbone.is_packed else "plain"
    return (
        f"nunatak {version('nunatak')}, torch {torch.__version__}, {device.type} {name}, "
        f"{backbone.dtype}, {layout}"
    )


def _processor() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability} with {torch.get_num_threads()} threads"
