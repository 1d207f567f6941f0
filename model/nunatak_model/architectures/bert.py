"""The BERT family: learned positions, post-norm layers (Devlin et al. 2019, arXiv:1810.04805).

BERT, RoBERTa, XLM-R and CamemBERT differ here only in the first position and in token types.
DistilBERT (Sanh et al. 2019, arXiv:1910.01108) has no token types. The embeddings of ELECTRA (Clark
et al. 2020, arXiv:2003.10555, sec. 3.2) may be narrower than its layers; a linear map follows them.
Other architectures with layers of this form use the functions of this module.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, starmap
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import Activation, HeadNorm, LinearMap, Pooling
from nunatak_contract.heads import TANH_BLOCK, DenseBlock
from nunatak_model.architectures.base import Architecture, RunLayer
from nunatak_model.config import BackboneConfig, read_activation, read_sizes
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.layer import MixedLayer, add_adapters, mixed_linear, mixed_norm, mixed_qkv
from nunatak_model.ops.attention import Attention
from nunatak_model.ops.device import to_device_at_once
from nunatak_model.ops.linear import apply_linear, layer_norm
from nunatak_model.text.encoding import Encoding
from nunatak_model.weights import PROJECTION, EmbeddingWeights, Shapes, linear_shapes, norm_shapes

POSITIONS_FROM_PADDING = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
"""Whether positions start after the padding id, by `model_type`."""
MODEL_TYPES = tuple(POSITIONS_FROM_PADDING)
DEFAULTS: Mapping[str, object] = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
"""Defaults of transformers for missing fields. The default `pad_token_id` is 0 in BERT, else 1."""
ROBERTA_VOCAB_SIZE = 50_265

EMBEDDINGS = {
    "embeddings.word": "embeddings.word_embeddings.weight",
    "embeddings.position": "embeddings.position_embeddings.weight",
    "embeddings.token_type": "embeddings.token_type_embeddings.weight",
    "embeddings.norm.weight": "embeddings.LayerNorm.weight",
    "embeddings.norm.bias": "embeddings.LayerNorm.bias",
}
LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feedforward_in": ("intermediate.dense",),
    "feedforward_out": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
WITHOUT_TYPES = {ours: it for ours, it in EMBEDDINGS.items() if ours != "embeddings.token_type"}
ELECTRA_DEFAULTS: Mapping[str, object] = {
    **DEFAULTS,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
DISTIL_DEFAULTS: Mapping[str, object] = {**DEFAULTS, "num_hidden_layers": 6}
DISTIL_FIXED: Mapping[str, object] = {"type_vocab_size": 1, "layer_norm_eps": 1e-12}
"""Fields that DistilBERT's `config.json` does not have."""
DISTIL_NAMES: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
DISTIL_SECOND_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""Names of BERT that transformers reads in DistilBERT's `config.json` too."""


def config_from(raw: dict[str, Any]) -> BackboneConfig:
    model_type = raw["model_type"]
    of_type = {"vocab_size": ROBERTA_VOCAB_SIZE} if model_type == "roberta" else {}
    return read_encoder(
        {**DEFAULTS, **of_type, **raw}, from_padding=POSITIONS_FROM_PADDING[model_type]
    )


def _read_electra(raw: dict[str, Any]) -> BackboneConfig:
    """The fields `summary_...` belong to heads for multiple choice, and change nothing here."""
    raw = {**ELECTRA_DEFAULTS, **raw}
    config = read_encoder(raw, from_padding=False)
    width: int = raw["embedding_size"]
    return replace(config, embedding_width=None if width == config.hidden_width else width)


def _read_distilbert(raw: dict[str, Any]) -> BackboneConfig:
    """The table of positions is stored, so `sinusoidal_pos_embds` changes nothing."""
    read_activation("activation", raw.get("activation", "gelu"))
    known = {*DISTIL_NAMES.values(), *DISTIL_FIXED}
    fields = {name: it for name, it in raw.items() if name not in known}
    for name, of_bert in DISTIL_NAMES.items():
        names = {name, *DISTIL_SECOND_NAMES}
        found = [raw[it] for it in (name, of_bert) if it in raw and it in names]
        if len(found) == 2 and found[0] != found[1]:
            raise UnsupportedBackboneError(
                f"{name} and {of_bert} of config.json mean the same and must be equal, got "
                f"{found[0]} and {found[1]}; delete the wrong one"
            )
        if found:
            fields[of_bert] = found[0]
    return read_encoder({**DISTIL_DEFAULTS, **fields, **DISTIL_FIXED}, from_padding=False)


def read_encoder(raw: Mapping[str, Any], *, from_padding: bool) -> BackboneConfig:
    """Read a whole `config.json` with the field names of BERT; `pad_token_id` may be missing."""
    positions = raw.get("position_embedding_type") or "absolute"
    if positions != "absolute" or raw.get("is_decoder"):
        raise UnsupportedBackboneError(
            "expected an encoder with absolute positions, got "
            f"position_embedding_type={raw.get('position_embedding_type')!r}, "
            f"is_decoder={raw.get('is_decoder', False)}"
        )
    pruned: Mapping[str, object] = raw.get("pruned_heads") or {}
    if any(pruned.values()):
        raise UnsupportedBackboneError(
            f"expected a model with all attention heads, got pruned_heads={pruned}; "
            "take the model before its heads were pruned"
        )
    padding_id = raw.get("pad_token_id", int(from_padding))
    if padding_id is None and from_padding:
        raise UnsupportedBackboneError(
            f"expected a pad_token_id in config.json, from which a {raw['model_type']} counts "
            "positions, got null; write the one the model was trained with"
        )
    padding_id = int(padding_id or 0)
    return BackboneConfig(
        **read_sizes(raw),
        position_offset=padding_id + 1 if from_padding else 0,
        num_token_types=raw["type_vocab_size"],
        padding_id=padding_id,
        layer_norm_epsilon=raw["layer_norm_eps"],
        activation=read_activation("hidden_act", raw["hidden_act"]),
        counts_positions_from_padding=from_padding,
        reach=None,
    )


def identity_of(family: str, config: BackboneConfig, **more: object) -> str:
    """The text is fixed: a new field of `BackboneConfig` must not change old digests."""
    return facts_text(
        family,
        config,
        position_offset=config.position_offset,
        padding_id=config.padding_id,
        counts_positions_from_padding=config.counts_positions_from_padding,
        layer_norm_epsilon=config.layer_norm_epsilon,
        **more,
    )


def facts_text(family: str, config: BackboneConfig, **more: object) -> str:
    facts = {"family": family, "num_heads": config.num_heads, "activation": config.activation}
    return json.dumps(facts | more, sort_keys=True)


def first_token_block(
    block: DenseBlock, config: BackboneConfig, pooling: Pooling | None
) -> DenseBlock | None:
    return block if pooling is Pooling.FIRST else None


def embedding_shapes(config: BackboneConfig) -> Shapes:
    width = config.embedding_width or config.hidden_width
    shapes: Shapes = {
        "embeddings.word": (config.vocab_size, width),
        "embeddings.position": (config.num_positions, width),
        "embeddings.token_type": (config.num_token_types, width),
        **norm_shapes("embeddings.norm", width),
    }
    if config.embedding_width is not None:
        shapes |= linear_shapes(PROJECTION, out=config.hidden_width, into=width)
    return shapes


def shapes_without_types(config: BackboneConfig) -> Shapes:
    return {name: it for name, it in embedding_shapes(config).items() if name in WITHOUT_TYPES}


def layer_shapes(layer: int, config: BackboneConfig) -> Shapes:
    return shapes_of(dict.fromkeys(LAYER, True), layer, config)


def shapes_of(
    parts: Mapping[str, bool], layer: int, config: BackboneConfig, *, is_gated: bool = False
) -> Shapes:
    """Names and shapes of one layer; `parts` in the order of the digest say which have a bias."""
    width, inner, heads = config.hidden_width, config.intermediate_width, config.qkv_widths
    maps = {
        "qkv": (sum(heads), width),
        "attention_output": (width, heads[0]),
        "feedforward_in": (2 * inner if is_gated else inner, width),
        "feedforward_out": (width, inner),
    }
    shapes: Shapes = {}
    for part, bias in parts.items():
        name = f"layers.{layer}.{part}"
        if part in maps:
            out, into = maps[part]
            shapes |= linear_shapes(name, out=out, into=into, bias=bias)
        else:
            of_head = part in {"query_norm", "key_norm"}
            shapes |= norm_shapes(name, config.head_width if of_head else width, bias=bias)
    return shapes


def embed(
    encodings: Sequence[Encoding], tables: EmbeddingWeights, config: BackboneConfig
) -> Float[Tensor, "tokens width"]:
    summed = sum_embeddings(encodings, tables, config)
    normed = layer_norm(summed, tables.norm, epsilon=config.layer_norm_epsilon)
    return normed if tables.projection is None else apply_linear(normed, tables.projection)


def sum_embeddings(
    encodings: Sequence[Encoding], tables: EmbeddingWeights, config: BackboneConfig
) -> Float[Tensor, "tokens table_width"]:
    rows = (
        (tables.word, [it.token_ids for it in encodings]),
        (tables.token_type, [it.type_ids for it in encodings]),
        (tables.position, [_positions(it, config) for it in encodings]),
    )
    held = [(table, list(chain.from_iterable(own))) for table, own in rows if table is not None]
    indices = to_device_at_once([numbers for _, numbers in held], tables.word.device)
    words, *others = starmap(_look_up, zip((table for table, _ in held), indices, strict=True))
    if tables.word_scale is not None:
        words = (words * tables.word_scale[indices[0]].unsqueeze(1)).to(tables.dtype)
    return reduce(torch.add, others, words)


def _look_up(table: Shaped[Tensor, "entries width"], indices: Tensor) -> Tensor:
    # A dense gradient would take fresh memory for the whole table in each step.
    is_sparse = table.requires_grad and table.device.type == "cpu"
    return functional.embedding(indices, table, sparse=is_sparse)


Attend = Callable[[Tensor, MixedLayer], Tensor]
"""Gives the attention of a layer over its input [tokens, width]."""
FeedForward = Callable[[Tensor, MixedLayer, BackboneConfig], Tensor]


def run_feed_forward(
    x: Float[Tensor, "tokens width"], layer: MixedLayer, config: BackboneConfig
) -> Float[Tensor, "tokens width"]:
    inner = mixed_linear(x, layer, LinearMap.FEEDFORWARD_IN, activation=config.activation)
    return mixed_linear(inner, layer, LinearMap.FEEDFORWARD_OUT)


def plan_layers(attention: Attention, config: BackboneConfig) -> RunLayer:
    # A function made here would make classes from its annotations for each batch, and leave them
    # in cycles.
    return partial(run_layer, attend=partial(_attend, attention, config), config=config)


def _attend(
    attention: Attention,
    config: BackboneConfig,
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
) -> Float[Tensor, "tokens width"]:
    qkv = mixed_qkv(hidden, layer)
    return attention(qkv, num_heads=config.num_heads, dropout=layer.dropout)


def run_layer(
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    *,
    attend: Attend,
    feed_forward: FeedForward = run_feed_forward,
    config: BackboneConfig,
) -> Float[Tensor, "read width"]:
    """Run one layer; each row's result equals the result of its task's own layer alone.

    Semantics:
        for row in rows:
            x = hidden[row];  W = frozen, plus the row's task's updates, or its own layer
            a = W.attention_output(attend(x, W))
            x = W.attention_norm(x + a + attention_adapter(a))
            f = feed_forward(x, W)
            out[row] = W.output_norm(x + f + feedforward_adapter(f))
        where an adapter that reads NORMED_SUM gets W.attention_norm(x + a) for a, or
        W.output_norm(x + f) for f
    """
    epsilon, frozen = config.layer_norm_epsilon, layer.frozen
    context = attend(hidden, layer)
    layer, hidden, context = layer.after_attention(hidden, context)
    block = layer.drop(mixed_linear(context, layer, LinearMap.ATTENTION_OUTPUT))
    summed = hidden + block
    norm = frozen.attention_norm
    add_adapters(summed, block, layer, "attention_adapter", norm=norm, epsilon=epsilon)
    hidden = mixed_norm(summed, layer, "attention_norm", epsilon=epsilon)
    block = layer.run_by_weights(lambda x, own: feed_forward(x, own, config), hidden)
    block = layer.drop(block)
    summed = hidden + block
    norm = frozen.output_norm
    add_adapters(summed, block, layer, "feedforward_adapter", norm=norm, epsilon=epsilon)
    return mixed_norm(summed, layer, "output_norm", epsilon=epsilon)


def _positions(encoding: Encoding, config: BackboneConfig) -> Sequence[int]:
    first = config.position_offset
    if not config.counts_positions_from_padding or config.padding_id not in encoding.token_ids:
        return range(first, first + encoding.num_tokens)
    positions, next_position = list[int](), first
    for token in encoding.token_ids:
        is_padding = token == config.padding_id
        positions.append(config.padding_id if is_padding else next_position)
        next_position += 0 if is_padding else 1
    return positions


BERT = Architecture(
    embeddings=EMBEDDINGS,
    layers="encoder.layer",
    parts=LAYER,
    head_sources={"head.dense": "pooler.dense"},
    has_late_norms=True,
    config_from=config_from,
    identity=partial(identity_of, "bert"),
    dense_block=partial(first_token_block, TANH_BLOCK),
    embedding_shapes=embedding_shapes,
    layer_shapes=layer_shapes,
    embed=embed,
    plan_layers=plan_layers,
)
DISTILBERT = replace(
    BERT,
    embeddings=WITHOUT_TYPES,
    layers="transformer.layer",
    parts={
        "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention_output": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "feedforward_in": ("ffn.lin1",),
        "feedforward_out": ("ffn.lin2",),
        "output_norm": ("output_layer_norm",),
    },
    head_sources={"head.dense": "pre_classifier"},
    config_from=_read_distilbert,
    identity=partial(identity_of, "distilbert"),
    dense_block=partial(
        first_token_block, DenseBlock(activation=Activation.RELU, bias=True, norm=HeadNorm.NONE)
    ),
    embedding_shapes=shapes_without_types,
)
ELECTRA = replace(
    BERT,
    embeddings={
        **EMBEDDINGS,
        f"{PROJECTION}.weight": "embeddings_project.weight",
        f"{PROJECTION}.bias": "embeddings_project.bias",
    },
    head_sources={"head.dense": "classifier.dense"},
    config_from=_read_electra,
    identity=partial(identity_of, "electra"),
    # The activation of heads is fixed; `hidden_act` is the activation of the layers.
    dense_block=partial(
        first_token_block, DenseBlock(activation=Activation.GELU, bias=True, norm=HeadNorm.NONE)
    ),
)
