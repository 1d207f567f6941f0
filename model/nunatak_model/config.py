"""The shape of a backbone: one description for all architectures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nunatak_contract.enums import Activation, LinearMap
from nunatak_model.errors import UnsupportedBackboneError

QKV: Final = (LinearMap.QUERY, LinearMap.KEY, LinearMap.VALUE)
"""Stacked into one map, in this order."""

SPELLINGS = {
    "gelu_python": Activation.GELU,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "swish": Activation.SILU,
}
"""transformers' other names of the same functions. The results are equal up to rounding."""

FIELDS: Final = {
    "model_type": "model_type",
    "vocab_size": "vocab_size",
    "hidden_width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_width": "intermediate_size",
    "num_positions": "max_position_embeddings",
}


def read_sizes(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {ours: raw[theirs] for ours, theirs in FIELDS.items()}


def read_activation(setting: str, name: str) -> Activation:
    known = {**{it.value: it for it in Activation}, **SPELLINGS}
    if name not in known:
        raise UnsupportedBackboneError(f"{setting} must be one of {', '.join(known)}, got {name!r}")
    return known[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """The description of a backbone without its weights."""

    model_type: str
    vocab_size: int
    hidden_width: int
    num_layers: int
    num_heads: int
    intermediate_width: int
    num_positions: int
    """The rows of the table if positions are learned."""
    position_offset: int = 0
    """Position of the first token: 0 in BERT, padding id + 1 in RoBERTa."""
    num_token_types: int = 1
    padding_id: int
    """-1 if there is no padding token."""
    layer_norm_epsilon: float
    activation: Activation
    counts_positions_from_padding: bool = False
    """Whether padding tokens in a text all share one position, as in RoBERTa."""
    reach: int | None
    """Tokens to either side that a token of a local layer sees; None without local layers."""
    num_shared_heads: int | None = None
    """Heads of keys and of values, each shared by a group of query heads."""
    own_head_width: int | None = None
    """None: the hidden width divided by the number of heads."""
    is_causal: bool = False
    has_score_bias: bool = True
    """Whether the logits of transformers' sequence heads have a bias."""
    embedding_width: int | None = None
    """Width of the tables if a linear map follows."""
    has_pair_terms: bool = False
    """Whether each pair of tokens adds a term to its score."""

    @property
    def head_width(self) -> int:
        return self.own_head_width or self.hidden_width // self.num_heads

    @property
    def num_key_heads(self) -> int:
        return self.num_shared_heads or self.num_heads

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        shared = self.num_key_heads * self.head_width
        return self.num_heads * self.head_width, shared, shared

    @property
    def max_tokens(self) -> int:
        """Longest sequence, in tokens, with a position for each token."""
        return self.num_positions - self.position_offset
