"""Trunk states: what the trunk makes of an input, which may outlive the batch that computed it.

A state depends on nothing but frozen things, so it is good for every task and every version.

Axes: tokens = tokens of one input, width = hidden width.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_model.backbone import Backbone
from nunatak_model.text.encoding import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkSource:
    """All that the trunk state of an input depends on, besides its depth."""

    backbone: str
    """Digest over weights, configuration and tokenizer; the same at any dtype."""
    dtype: torch.dtype
    device: torch.device
    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...]


def trunk_source(backbone: Backbone, encoding: Encoding) -> TrunkSource:
    """Return what the states of this input on this backbone depend on."""
    return TrunkSource(
        backbone=backbone.digest,
        dtype=backbone.dtype,
        device=backbone.device,
        token_ids=encoding.token_ids,
        type_ids=encoding.type_ids,
    )


class TrunkStates(Protocol):
    """States held from one batch to the next, by source and depth."""

    def depths(self, source: TrunkSource) -> Collection[int]:
        """Return the depths at which the state of this source is held."""
        ...

    def read(self, source: TrunkSource, depth: int) -> Float[Tensor, "tokens width"]:
        """Return a state that is held; the caller does not write into it."""
        ...

    def offer(self, source: TrunkSource, depth: int, state: Float[Tensor, "tokens width"]) -> None:
        """Take note of a state that was computed; a copy of it may be held from now on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkActivations:
    """Hidden states that the trunk gives some inputs at one depth."""

    depth: int
    """Index of the layer that reads them."""
    hidden: Mapping[Encoding, Float[Tensor, "tokens width"]]
