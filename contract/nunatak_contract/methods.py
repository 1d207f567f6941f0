"""The methods by which a task's branch differs from the backbone, with their settings.

A manifest stores these classes, and `nunatak_model` runs them. `nunatak_model` also checks whether
a method fits a backbone.
"""

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from nunatak_contract.enums import (
    Activation,
    AdaptedBlocks,
    AdapterInput,
    LoraTarget,
    MethodKind,
    Norms,
)
from nunatak_contract.record import Record

FirstLayer = Annotated[int, Field(ge=0, le=1000, description="layers below stay shared")]

QUERY_AND_VALUE = (LoraTarget.QUERY, LoraTarget.VALUE)
"""The maps that Hu et al. 2021 update."""


class TopK(Record, frozen=True):
    """Own copies of the top `num_layers` layers (Lee et al. 2019, arXiv:1911.03090)."""

    kind: Literal[MethodKind.TOPK] = MethodKind.TOPK
    num_layers: Annotated[int, Field(ge=1, le=1000)]


class HeadOnly(Record, frozen=True):
    """Nothing but a head; the whole backbone is trunk."""

    kind: Literal[MethodKind.HEAD] = MethodKind.HEAD


class Bottleneck(Record, frozen=True):
    """Bottleneck adapters from `first_layer` up; the defaults are He et al. 2021, eq. 1."""

    kind: Literal[MethodKind.BOTTLENECK] = MethodKind.BOTTLENECK
    size: Annotated[int, Field(ge=1, le=65_536, description="width of the adapters")]
    first_layer: FirstLayer = 0
    blocks: AdaptedBlocks = Field(default=AdaptedBlocks.BOTH, description="that have an adapter")
    reads: AdapterInput = Field(default=AdapterInput.BLOCK, description="what an adapter reads")
    activation: Activation = Field(default=Activation.TANH, description="within an adapter")
    norms: Norms = Field(default=Norms.OWN, description="layer norms after adapted blocks")


class Lora(Record, frozen=True):
    """Low-rank updates of attention and feed-forward projections (Hu et al. 2021)."""

    kind: Literal[MethodKind.LORA] = MethodKind.LORA
    rank: Annotated[int, Field(ge=1, le=65_536, description="of the updates")]
    alpha: Annotated[FiniteFloat, Field(gt=0, description="scale of the updates, times rank")]
    targets: Annotated[
        tuple[LoraTarget, ...],
        Field(min_length=1, max_length=6, description="maps that have an update"),
    ]
    first_layer: FirstLayer = 0

    @property
    def scale(self) -> float:
        """Factor of the updates."""
        return self.alpha / self.rank


class Full(Record, frozen=True):
    """A full copy: embeddings and every layer are the task's own."""

    kind: Literal[MethodKind.FULL] = MethodKind.FULL


Method = Annotated[
    TopK | HeadOnly | Bottleneck | Lora | Full,
    Field(discriminator="kind"),
]
