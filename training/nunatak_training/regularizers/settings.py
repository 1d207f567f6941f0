"""What a recipe says of its regularizer; the variants are those of the papers.

GradDrop and its variants, GradFreeze: O'Neill and Dutta 2023, "Gradient Sparsification For Masked
Fine-Tuning of Transformers", sec. III and IV. Mixout: Lee, Cho and Kang 2020 (arXiv:1909.11299),
as He et al. 2021 (arXiv:2106.03164), sec. 5 and table 7, use it.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(gt=0, lt=1)]


class RegularizerName(StrEnum):
    """All regularizers."""

    NONE = "none"
    GRADDROP = "graddrop"
    LAYER_GRADDROP = "layer-graddrop"
    ANNEAL_GRADDROP = "anneal-graddrop"
    ANNEAL_LAYER_GRADDROP = "anneal-layer-graddrop"
    GRADDROP_EPOCH = "graddrop-epoch"
    GRADDROP_EPOCH_TOGGLE = "graddrop-epoch-toggle"
    GRADFREEZE_TOPDOWN = "gradfreeze-topdown"
    GRADFREEZE_BOTTOMUP = "gradfreeze-bottomup"
    MIXOUT = "mixout"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class UnregularizedSettings(_Settings):
    """Nothing but dropout and weight decay."""

    name: Literal[RegularizerName.NONE] = RegularizerName.NONE


class GradDropSettings(_Settings):
    """Gradients dropped in every batch: single entries (eq. 4), or those of whole layers."""

    name: Literal[RegularizerName.GRADDROP, RegularizerName.LAYER_GRADDROP]
    rate: Rate = 0.2


class AnnealedGradDropSettings(_Settings):
    """The same with a rate that falls linearly to 0 in the last epoch (sec. III-C)."""

    name: Literal[RegularizerName.ANNEAL_GRADDROP, RegularizerName.ANNEAL_LAYER_GRADDROP]
    rate: Rate = Field(default=0.9, description="in the first epoch")


class EpochGradDropSettings(_Settings):
    """Every epoch frees another random part of the entries (sec. III-B)."""

    name: Literal[RegularizerName.GRADDROP_EPOCH, RegularizerName.GRADDROP_EPOCH_TOGGLE]


class GradFreezeSettings(_Settings):
    """Every epoch frees more layers: gradual unfreezing (sec. IV; Howard and Ruder 2018)."""

    name: Literal[RegularizerName.GRADFREEZE_TOPDOWN, RegularizerName.GRADFREEZE_BOTTOMUP]


class MixoutSettings(_Settings):
    """Every forward pass reads a random part of the weights as they were before training."""

    name: Literal[RegularizerName.MIXOUT]
    rate: Rate = 0.9


RegularizerSettings = Annotated[
    UnregularizedSettings
    | GradDropSettings
    | AnnealedGradDropSettings
    | EpochGradDropSettings
    | GradFreezeSettings
    | MixoutSettings,
    Field(discriminator="name"),
]

REPLACES_DROPOUT = frozenset(RegularizerName) - {
    RegularizerName.NONE,
    RegularizerName.GRADFREEZE_TOPDOWN,
    RegularizerName.GRADFREEZE_BOTTOMUP,
}
"""With these there is no dropout (O'Neill and Dutta 2023, sec. IV; He et al. 2021, sec. 5)."""
