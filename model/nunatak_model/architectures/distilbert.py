"""DistilBERT: BERT's layers without token types (Sanh et al. 2019, arXiv:1910.01108)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from nunatak_contract.enums import Activation, HeadNorm
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures import bert
from nunatak_model.config import BackboneConfig, read_activation
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.weights import Shapes

MODEL_TYPES = ("distilbert",)
NAMES: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
SECOND_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""Names of BERT that transformers reads in DistilBERT's `config.json` too."""
DEFAULTS: Mapping[str, object] = {**bert.DEFAULTS, "num_hidden_layers": 6}
FIXED: Mapping[str, object] = {"type_vocab_size": 1, "layer_norm_eps": 1e-12}
"""Fields that `config.json` does not have."""
EMBEDDINGS = {ours: it for ours, it in bert.EMBEDDINGS.items() if ours != "embeddings.token_type"}
LAYER = {
    "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention_output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feedforward_in": ("ffn.lin1",),
    "feedforward_out": ("ffn.lin2",),
    "output_norm": ("output_layer_norm",),
}
HEAD_SOURCES: Mapping[str, str] = {"head.dense": "pre_classifier"}
BLOCK = DenseBlock(activation=Activation.RELU, bias=True, norm=HeadNorm.NONE)
embed, layer_shapes, plan_layers = bert.embed, bert.layer_shapes, bert.plan_layers
identity = partial(bert.identity_of, "distilbert")
source_names = partial(
    bert.sources_in, embeddings=EMBEDDINGS, layers="transformer.layer", parts=LAYER
)
dense_block = partial(bert.first_token_block, BLOCK)


def config_from(raw: dict[str, Any]) -> BackboneConfig:
    """The table of positions is stored, so `sinusoidal_pos_embds` changes nothing."""
    read_activation("activation", raw.get("activation", "gelu"))
    fields = {name: it for name, it in raw.items() if name not in {*NAMES.values(), *FIXED}}
    for name, of_bert in NAMES.items():
        found = [raw[it] for it in (name, of_bert) if it in raw and it in {name, *SECOND_NAMES}]
        if len(found) == 2 and found[0] != found[1]:
            raise UnsupportedBackboneError(
                f"{name} and {of_bert} of config.json mean the same and must be equal, got "
                f"{found[0]} and {found[1]}; delete the wrong one"
            )
        if found:
            fields[of_bert] = found[0]
    return bert.read_encoder({**DEFAULTS, **fields, **FIXED}, from_padding=False)


def embedding_shapes(config: BackboneConfig) -> Shapes:
    return {name: it for name, it in bert.embedding_shapes(config).items() if name in EMBEDDINGS}
