"""The methods by which a task's branch differs from the backbone, with their settings.

A manifest stores a method as it stands here. `nunatak_model` checks that a method fits a backbone,
and runs the method. A method with a `first_layer` leaves the layers below it shared.
"""

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from nunatak_contract.enums import (
    Activation,
    AdaptedBlocks,
    AdapterInput,
    LinearMap,
    MethodKind,
    Norms,
)
from nunatak_contract.plain_text import counted
from nunatak_contract.record import Record

FirstLayer = Annotated[int, Field(ge=0, le=1000, description="layers below stay shared")]

QUERY_AND_VALUE = (LinearMap.QUERY, LinearMap.VALUE)
"""The maps that Hu et al. 2021 update."""


class _MethodRecord(Record, frozen=True):
    """The base of all methods: the name, and how people read the method."""

    kind: MethodKind

    @property
    def width(self) -> int | None:
        """The one number that tells the method from others of its kind, if there is one."""
        return None

    @property
    def text(self) -> str:
        """The method with its width, as people read it."""
        return self.kind.value


class TopK(_MethodRecord, frozen=True):
    """Own copies of the top `num_layers` layers (Lee et al. 2019, arXiv:1911.03090)."""

    kind: Literal[MethodKind.TOPK] = MethodKind.TOPK
    num_layers: Annotated[int, Field(ge=1, le=1000)]

    @property
    def text(self) -> str:
        """The method with the number of its layers."""
        return f"{self.kind}, {counted(self.num_layers, 'layer')}"


class HeadOnly(_MethodRecord, frozen=True):
    """Nothing but a head; the whole backbone is trunk."""

    kind: Literal[MethodKind.HEAD] = MethodKind.HEAD


class Bottleneck(_MethodRecord, frozen=True):
    """Bottleneck adapters from `first_layer` up; by default as in He et al. 2021, eq. 1."""

    kind: Literal[MethodKind.BOTTLENECK] = MethodKind.BOTTLENECK
    size: Annotated[int, Field(ge=1, le=65_536, description="width of the adapters")]
    first_layer: FirstLayer = 0
    blocks: AdaptedBlocks = Field(default=AdaptedBlocks.BOTH, description="blocks with an adapter")
    reads: AdapterInput = Field(default=AdapterInput.BLOCK, description="what an adapter reads")
    activation: Activation = Field(default=Activation.TANH, description="activation of an adapter")
    norms: Norms = Field(default=Norms.OWN, description="layer norms after adapted blocks")

    @property
    def width(self) -> int:
        """The width of the adapters."""
        return self.size

    @property
    def text(self) -> str:
        """The method with the width of its adapters."""
        return f"{self.kind}, size {self.size}"


class Lora(_MethodRecord, frozen=True):
    """Low-rank updates of attention and feed-forward projections (Hu et al. 2021)."""

    kind: Literal[MethodKind.LORA] = MethodKind.LORA
    rank: Annotated[int, Field(ge=1, le=65_536, description="rank of the updates")]
    alpha: Annotated[FiniteFloat, Field(gt=0, description="scale of the updates, times rank")]
    targets: Annotated[
        tuple[LinearMap, ...],
        Field(min_length=1, max_length=6, description="maps that have an update"),
    ]
    first_layer: FirstLayer = 0

    @property
    def width(self) -> int:
        """The rank of the updates."""
        return self.rank

    @property
    def text(self) -> str:
        """The method with the rank of its updates."""
        return f"{self.kind}, rank {self.rank}"

    @property
    def scale(self) -> float:
        """Factor of the updates."""
        return self.alpha / self.rank


class Ia3(_MethodRecord, frozen=True):
    """Learned scales of outputs and inputs of linear maps (by default as in Liu et al. 2022)."""

    kind: Literal[MethodKind.IA3] = MethodKind.IA3
    scaled_outputs: Annotated[
        tuple[LinearMap, ...], Field(max_length=6, description="maps whose output is scaled")
    ] = (LinearMap.KEY, LinearMap.VALUE)
    scaled_inputs: Annotated[
        tuple[LinearMap, ...], Field(max_length=3, description="maps whose input is scaled")
    ] = (LinearMap.FEEDFORWARD_OUT,)
    first_layer: FirstLayer = 0

    @property
    def text(self) -> str:
        """The method with the number of its vectors."""
        number = len(self.scaled_outputs) + len(self.scaled_inputs)
        return f"{self.kind}, {counted(number, 'vector')} a layer"


class Full(_MethodRecord, frozen=True):
    """A full copy: embeddings and every layer are the task's own."""

    kind: Literal[MethodKind.FULL] = MethodKind.FULL


Method = Annotated[TopK | HeadOnly | Bottleneck | Lora | Ia3 | Full, Field(discriminator="kind")]
