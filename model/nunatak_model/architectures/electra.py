"""ELECTRA: BERT whose embeddings may be narrower than its layers (Clark et al. 2020).

"ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators" (arXiv:2003.10555),
sec. 3.2: a linear map leads from the width of the embeddings to the hidden width.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from nunatak_contract.enums import Activation, HeadNorm
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures import bert
from nunatak_model.config import BackboneConfig
from nunatak_model.weights import PROJECTION

MODEL_TYPES = ("electra",)
DEFAULTS: Mapping[str, object] = {
    **bert.DEFAULTS,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
EMBEDDINGS = {
    **bert.EMBEDDINGS,
    f"{PROJECTION}.weight": "embeddings_project.weight",
    f"{PROJECTION}.bias": "embeddings_project.bias",
}
HEAD_SOURCES: Mapping[str, str] = {"head.dense": "classifier.dense"}
BLOCK = DenseBlock(activation=Activation.GELU, bias=True, norm=HeadNorm.NONE)
"""The activation of heads is fixed; `hidden_act` is the activation of the layers."""
embed, embedding_shapes = bert.embed, bert.embedding_shapes
layer_shapes, plan_layers = bert.layer_shapes, bert.plan_layers
identity = partial(bert.identity_of, "electra")
source_names = partial(
    bert.sources_in, embeddings=EMBEDDINGS, layers="encoder.layer", parts=bert.LAYER
)
dense_block = partial(bert.first_token_block, BLOCK)


def config_from(raw: dict[str, Any]) -> BackboneConfig:
    """The fields `summary_...` belong to heads for multiple choice, and change nothing here."""
    raw = {**DEFAULTS, **raw}
    config = bert.read_encoder(raw, from_padding=False)
    width: int = raw["embedding_size"]
    return replace(config, embedding_width=None if width == config.hidden_width else width)
