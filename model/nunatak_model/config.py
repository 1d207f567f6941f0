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
"""transformers' other names of the same functions. The results are equal up to rounding."""


def read_activation(setting: str, name: str) -> Activation:
    """Read a setting of `config.json`; raise `UnsupportedBackboneError` at an unknown name."""
    known = {**{it.value: it for it in Activation}, **SPELLINGS}
    if name not in known:
        raise UnsupportedBackboneError(f"{setting} must be one of {', '.join(known)}, got {name!r}")
    return known[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """The description of a backbone without its weights."""

    model_type: str
    """transformers' name of the architecture."""
    vocab_size: int
    hidden_width: int
    num_layers: int
    num_heads: int
    intermediate_width: int
    num_positions: int
    """Number of positions of the encoder: the rows of the table if positions are learned."""
    position_offset: int
    """Position of the first token: 0 in BERT, padding id + 1 in RoBERTa."""
    num_token_types: int
    padding_id: int
    layer_norm_epsilon: float
    activation: Activation
    counts_positions_from_padding: bool
    """Whether padding tokens in a text all share one position, as in RoBERTa."""
    reach: int | None
    """Tokens to either side that a token of a local layer sees; None without local layers."""
    embedding_width: int | None = None
    """Width of the embedding tables if a linear map follows; None: the hidden width."""
    has_pair_terms: bool = False
    """Whether the attention adds a term to the score of each pair of tokens."""

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.hidden_width // self.num_heads

    @property
    def max_tokens(self) -> int:
        """Longest sequence, in tokens, with a position for each token."""
        return self.num_positions - self.position_offset
