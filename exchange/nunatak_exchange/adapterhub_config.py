"""AdapterHub's `adapter_config.json` and `head_config.json`: fields read here, and fields refused.

The fields are from `adapters` 1.3 (`BnConfig`, `PredictionHead`). Older files have the same fields
or fewer. An unknown field is accepted while it is off (null, false, empty). An unknown field that
is on is refused.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt

from nunatak_contract.enums import Activation
from nunatak_contract.errors import NunatakError
from nunatak_exchange.checkpoint import Checkpoint

CONFIG_FILE, WEIGHTS_STEM = "adapter_config.json", "adapter"
HEAD_FILE, HEAD_STEM = "head_config.json", "model_head"

Factor = Annotated[float, Field(gt=0)]

ACTIVATIONS = {
    "relu": Activation.RELU,
    "swish": Activation.SILU,
    "silu": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "leakyrelu": Activation.LEAKY_RELU,
    "tanh": Activation.TANH,
}
REFUSED = {
    "ln_before": "a layer norm inside the adapter (ln_before)",
    "ln_after": "a layer norm inside the adapter (ln_after)",
    "is_parallel": "parallel adapters (is_parallel)",
    "use_gating": "gated adapters (use_gating)",
    "inv_adapter": "invertible adapters (inv_adapter)",
    "phm_layer": "Compacter layers (phm_layer)",
    "cross_adapter": "adapters of cross attention (cross_adapter)",
}
TRAINING_ALONE = frozenset(
    {
        *("dropout", "stochastic_depth", "init_weights", "init_weights_seed"),
        *("phm_dim", "factorized_phm_W", "shared_W_phm", "shared_phm_rule", "phm_rank", "phm_bias"),
        *("factorized_phm_rule", "phm_c_init", "phm_init_range", "learn_phm"),
        *("hypercomplex_nonlinearity", "inv_adapter_reduction_factor"),
        # Without a norm in between, both orders of adding give the same sum.
        "adapter_residual_before_ln",
    }
)
"""Settings without effect on a trained adapter's results, and settings of refused features."""


class Scaling(StrEnum):
    """Trained factors of an adapter's output: one for all, or one for each channel."""

    LEARNED = "learned"
    CHANNEL = "channel"


class BottleneckConfig(BaseModel):
    """A bottleneck configuration; the fields are documented by `adapters`' `BnConfig`."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, strict=True)

    mh_adapter: bool
    output_adapter: bool
    reduction_factor: Factor | dict[str, Factor]
    non_linearity: str
    original_ln_before: bool = False
    original_ln_after: bool = True
    residual_before_ln: bool | str = True
    scaling: float | str = 1.0
    leave_out: tuple[NonNegativeInt, ...] = ()


class AdapterFile(BaseModel):
    """`adapter_config.json`."""

    model_config = ConfigDict(frozen=True)

    config: dict[str, JsonValue]
    name: str
    model_type: str
    hidden_size: int
    model_name: str | None = None


class FlexibleHead(BaseModel):
    """The head of a model class of `adapters`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    head_type: str
    num_labels: Annotated[int, Field(ge=1)] = 2
    layers: int
    activation_function: str | None = None
    label2id: dict[str, NonNegativeInt] | None = None
    use_pooler: bool = False
    bias: bool = True
    dropout_prob: float | None = None


class HeadFile(BaseModel):
    """`head_config.json`; heads of transformers' own classes have no `config`."""

    model_config = ConfigDict(frozen=True)

    config: FlexibleHead | None
    name: str | None
    model_class: str
    num_labels: Annotated[int, Field(ge=1)] | None = None
    label2id: dict[str, NonNegativeInt] | None = None


def read_bottleneck(checkpoint: Checkpoint, file: AdapterFile) -> BottleneckConfig:
    architecture = file.config.get("architecture")
    if architecture is not None:
        raise unsupported(
            checkpoint, f"it is an adapter of architecture {str(architecture)[:80]!r}"
        )
    config = checkpoint.parsed(CONFIG_FILE, _ConfigOnly).config
    for name, value in (config.__pydantic_extra__ or {}).items():
        if value and name not in TRAINING_ALONE:
            found = REFUSED.get(name, f"the unknown setting {name} = {str(value)[:80]!r}")
            raise unsupported(checkpoint, f"it uses {found}")
    if config.non_linearity.lower() not in ACTIVATIONS:
        raise unsupported(checkpoint, f"its non-linearity is {config.non_linearity[:80]!r}")
    if isinstance(config.scaling, str) and config.scaling not in set(Scaling):
        raise unsupported(checkpoint, f"its scaling is {config.scaling[:80]!r}")
    # If the adapter reads the block alone, the residual setting has no effect.
    residuals = (True,) if config.original_ln_before else (True, False)
    if config.residual_before_ln not in residuals or not config.original_ln_after:
        raise unsupported(
            checkpoint,
            "its norms and residuals have another place than Houlsby's or Pfeiffer's "
            f"(residual_before_ln={config.residual_before_ln!r}, "
            f"original_ln_after={config.original_ln_after})",
        )
    return config


def size_at(checkpoint: Checkpoint, config: BottleneckConfig, layer: int, width: int) -> int:
    factor = config.reduction_factor
    if isinstance(factor, dict):
        found = factor.get(str(layer), factor.get("default"))
        if found is None:
            raise checkpoint.invalid(
                f"its reduction_factor names neither layer {layer} nor a default"
            )
        factor = found
    return max(1, int(width // factor))


def unsupported(checkpoint: Checkpoint, found: str) -> NunatakError:
    return checkpoint.refuse(
        found,
        "expected a bottleneck adapter of Houlsby's or Pfeiffer's kind (double_seq_bn, seq_bn)",
    )


class _ConfigOnly(BaseModel):
    model_config = ConfigDict(frozen=True)

    config: BottleneckConfig
