"""The shape of a backbone: one description for all architectures."""

from dataclasses import dataclass

from nunatak_contract.enums import Activation
from nunatak_model.errors import UnsupportedBackboneError

SPELLINGS = {
    "gelu_python": Activation.GELU,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "swish": Activation.SILU,
}
"""Other names that transformers has for the same functions, equal to rounding."""


def read_activation(setting: str, name: str) -> Activation:
    """Read a setting of `config.json`; raise `UnsupportedBackboneError` at an unknown name."""
    known = {**{it.value: it for it in Activation}, **SPELLINGS}
    if name not in known:
        raise UnsupportedBackboneError(f"{setting} must be one of {', '.join(known)}, got {name!r}")
    return known[name]


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
