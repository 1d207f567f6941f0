"""The shape of a backbone: one description for all architectures."""

from dataclasses import dataclass
from enum import StrEnum

from nunatak_model.errors import UnsupportedBackboneError


class Activation(StrEnum):
    """Non-linearity between two linear maps, or in a head (transformers' names)."""

    GELU = "gelu"
    GELU_TANH = "gelu_new"
    RELU = "relu"
    TANH = "tanh"
    SILU = "silu"
    LEAKY_RELU = "leaky_relu"

    @classmethod
    def of(cls, setting: str, name: str) -> "Activation":
        """Read a setting of `config.json`; raise `UnsupportedBackboneError` at another name."""
        known = {**{it.value: it for it in cls}, **SPELLINGS}
        if name not in known:
            raise UnsupportedBackboneError(
                f"{setting} must be one of {', '.join(known)}, got {name!r}"
            )
        return known[name]


SPELLINGS = {
    "gelu_python": Activation.GELU,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "swish": Activation.SILU,
}
"""Other names that transformers has for the same functions, equal to rounding."""


class Pooling(StrEnum):
    """How the token vectors of a text become one vector."""

    MEAN = "mean"
    FIRST = "first"


class HeadNorm(StrEnum):
    """Layer norm of a head's dense block."""

    NONE = "none"
    GAIN = "gain"
    GAIN_AND_OFFSET = "gain_and_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseBlock:
    """The block between the pooling and the output of a head: `norm(activation(dense(x)))`."""

    activation: Activation
    bias: bool
    norm: HeadNorm


TANH_BLOCK = DenseBlock(activation=Activation.TANH, bias=True, norm=HeadNorm.NONE)
"""BERT's pooler and RoBERTa's `classifier.dense`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """Everything about a backbone that is not a weight."""

    model_type: str
    """transformers' name of the architecture."""
    vocab_size: int
    hidden_width: int
    num_layers: int
    num_heads: int
    intermediate_width: int
    num_positions: int
    """Positions the encoder knows; rows of the table where positions are learned."""
    position_offset: int
    """Position of the first token: 0 in BERT, padding id + 1 in RoBERTa."""
    num_token_types: int
    padding_id: int
    layer_norm_epsilon: float
    activation: Activation
    counts_positions_from_padding: bool
    """RoBERTa gives no position of its own to a token that is the padding token."""

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.hidden_width // self.num_heads

    @property
    def max_tokens(self) -> int:
        """Longest sequence, in tokens, that has a position for each of them."""
        return self.num_positions - self.position_offset
