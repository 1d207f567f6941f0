"""How a branch differs from the backbone: one record a method."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from nunatak_registry.manifest.base import Record
from nunatak_registry.manifest.heads import Activation

FirstLayer = Annotated[int, Field(ge=0, le=1000, description="layers below stay shared")]


class LoraTarget(StrEnum):
    """The linear maps of a layer that can carry a low-rank update."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUTPUT = "attention_output"
    FEEDFORWARD_IN = "feedforward_in"
    FEEDFORWARD_OUT = "feedforward_out"


class TopKRecord(Record):
    """Own copies of the top `num_layers` layers (Lee et al. 2019, arXiv:1911.03090)."""

    kind: Literal["topk"] = "topk"
    num_layers: Annotated[int, Field(ge=1, le=1000)]


class HeadOnlyRecord(Record):
    """Nothing but a head; the whole backbone is trunk."""

    kind: Literal["head"] = "head"


class AdaptedBlocks(StrEnum):
    """Which blocks of a layer have a bottleneck adapter."""

    BOTH = "both"
    ATTENTION = "attention"
    FEEDFORWARD = "feedforward"


class AdapterInput(StrEnum):
    """What a bottleneck adapter reads."""

    BLOCK = "block"
    NORMED_SUM = "normed_sum"


class Norms(StrEnum):
    """Whose the layer norms after adapted blocks are: the task's own or the backbone's."""

    OWN = "own"
    FROZEN = "frozen"


class BottleneckRecord(Record):
    """Bottleneck adapters from `first_layer` up; by default those of He et al. 2021, eq. 1."""

    kind: Literal["bottleneck"] = "bottleneck"
    size: Annotated[int, Field(ge=1, le=65_536, description="width of the adapters")]
    first_layer: FirstLayer = 0
    blocks: AdaptedBlocks = Field(default=AdaptedBlocks.BOTH, description="that have an adapter")
    reads: AdapterInput = Field(default=AdapterInput.BLOCK, description="what an adapter reads")
    activation: Activation = Field(default=Activation.TANH, description="within an adapter")
    norms: Norms = Field(default=Norms.OWN, description="layer norms after adapted blocks")


class LoraRecord(Record):
    """Low-rank updates of attention and feed-forward projections (Hu et al. 2021)."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1, le=65_536, description="of the updates")]
    alpha: Annotated[FiniteFloat, Field(gt=0, description="scale of the updates, times rank")]
    targets: Annotated[
        tuple[LoraTarget, ...],
        Field(min_length=1, max_length=6, description="maps that have an update"),
    ]
    first_layer: FirstLayer = 0


class FullRecord(Record):
    """A full copy: embeddings and every layer are the task's own."""

    kind: Literal["full"] = "full"


MethodRecord = Annotated[
    TopKRecord | HeadOnlyRecord | BottleneckRecord | LoraRecord | FullRecord,
    Field(discriminator="kind"),
]
