"""The shape of a backbone: one description for all architectures."""

from dataclasses import dataclass
from enum import StrEnum


class Activation(StrEnum):
    """Non-linearity between the two feed-forward products (transformers' names)."""

    GELU = "gelu"
    GELU_TANH = "gelu_new"
    RELU = "relu"


class Pooling(StrEnum):
    """How the token vectors of a text become one vector."""

    MEAN = "mean"
    FIRST = "first"


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
    """Rows of the position table."""
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
