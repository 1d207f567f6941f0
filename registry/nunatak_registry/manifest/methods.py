"""How a branch differs from the backbone: one record a method."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from nunatak_registry.manifest.base import Record
from nunatak_registry.manifest.heads import Activation


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
    size: Annotated[int, Field(ge=1, le=65_536)]
    first_layer: Annotated[int, Field(ge=0, le=1000)] = 0
    blocks: AdaptedBlocks = AdaptedBlocks.BOTH
    reads: AdapterInput = AdapterInput.BLOCK
    activation: Activation = Activation.TANH
    norms: Norms = Norms.OWN


class LoraRecord(Record):
    """Low-rank updates of attention and feed-forward projections (Hu et al. 2021)."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1, le=65_536)]
    alpha: Annotated[FiniteFloat, Field(gt=0)]
    targets: Annotated[tuple[LoraTarget, ...], Field(min_length=1, max_length=6)]
    first_layer: Annotated[int, Field(ge=0, le=1000)] = 0


class FullRecord(Record):
    """A full copy: embeddings and every layer are the task's own."""

    kind: Literal["full"] = "full"


MethodRecord = Annotated[
    TopKRecord | HeadOnlyRecord | BottleneckRecord | LoraRecord | FullRecord,
    Field(discriminator="kind"),
]
