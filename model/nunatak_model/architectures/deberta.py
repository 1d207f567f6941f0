"""DeBERTa-v2 and v3: attention by content and by relative position, disentangled.

He et al. 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (arXiv:2006.03654),
eq. 4. The score of a query and a key is a sum of up to three products: query with key, query with
the key of their distance (c2p), and key with the query of their distance (p2c). The layer's own
maps make keys and queries of the distances too, so a task that changes these maps changes all three
products. All layers share one table of distances, which belongs to the embeddings.

Axes: tokens = packed tokens of the rows, width = hidden width, three_width = query, key and value
side by side, near = rows of the table that the longest row reads; of the rows of one length: rows,
heads, length, head_width.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nunatak_contract.enums import HeadNorm, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_model.architectures import bert
from nunatak_model.architectures.base import Architecture, RunLayer
from nunatak_model.config import BackboneConfig, read_activation
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.layer import MixedLayer, TokenSpan, mixed_qkv
from nunatak_model.ops.attention import (
    Attention,
    AttentionPlan,
    attend_in_pieces,
    by_pair,
    by_runs,
    distances,
)
from nunatak_model.ops.device import to_device
from nunatak_model.ops.linear import apply_linear, layer_norm
from nunatak_model.text.encoding import Encoding
from nunatak_model.weights import (
    PROJECTION,
    RELATIVE,
    RELATIVE_NORM,
    EmbeddingWeights,
    RelativePositions,
    Shapes,
    linear_shapes,
    norm_shapes,
)

DEFAULTS: Mapping[str, object] = {
    "vocab_size": 128_100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "position_biased_input": True,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "conv_kernel_size": 0,
    "pooler_hidden_act": "gelu",
}
EMBEDDINGS = {
    **bert.EMBEDDINGS,
    f"{PROJECTION}.weight": "embeddings.embed_proj.weight",
    RELATIVE: "encoder.rel_embeddings.weight",
    f"{RELATIVE_NORM}.weight": "encoder.LayerNorm.weight",
    f"{RELATIVE_NORM}.bias": "encoder.LayerNorm.bias",
}
LAYER = {
    **bert.LAYER,
    "qkv": ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DebertaConfig(BackboneConfig):
    """DeBERTa's own fields."""

    has_positions: bool
    """Whether the embeddings hold positions, next to the distances in the attention."""
    has_token_types: bool
    is_relative: bool
    """Whether the attention reads distances."""
    content_to_position: bool
    position_to_content: bool
    position_buckets: int
    """Number of buckets of distances to one side; 0: each distance is a bucket."""
    farthest: int
    """Distance from which all share the last bucket; `max_relative_positions` in transformers."""
    norms_relative: bool
    buckets: tuple[int, ...] = field(repr=False, compare=False)
    """Bucket of each distance from 0 up; follows from the fields above."""
    dense_block: DenseBlock

    @property
    def reads_distances(self) -> bool:
        """Whether a product of the score reads distances."""
        return self.is_relative and (self.content_to_position or self.position_to_content)

    @property
    def span(self) -> int:
        """Number of rows of the table of distances for one side."""
        return self.position_buckets or self.farthest

    @property
    def scale(self) -> float:
        products = 1 + self.content_to_position + self.position_to_content
        return 1 / math.sqrt(self.head_width * products)


def config_from(raw: dict[str, Any]) -> DebertaConfig:
    raw = {**DEFAULTS, **raw}
    named: str | list[str] = raw.get("pos_att_type") or []
    products = _parts(named) if isinstance(named, str) else named
    reads_distances = bool({"c2p", "p2c"} & set(products))
    _check(raw, reads_distances=reads_distances)
    plain = bert.read_encoder(raw, from_padding=False)
    width, num_types = raw.get("embedding_size", plain.hidden_width), plain.num_token_types
    common = replace(
        plain,
        num_token_types=max(1, num_types),
        embedding_width=None if width == plain.hidden_width else width,
        has_pair_terms=True,
    )
    farthest, num_buckets = raw["max_relative_positions"], max(0, raw["position_buckets"])
    farthest = plain.num_positions if farthest < 1 else farthest
    is_relative = bool(raw["relative_attention"])
    return DebertaConfig(
        **{it.name: getattr(common, it.name) for it in fields(common)},
        has_positions=bool(raw["position_biased_input"]),
        has_token_types=num_types > 0,
        is_relative=is_relative,
        content_to_position="c2p" in products,
        position_to_content="p2c" in products,
        position_buckets=num_buckets,
        farthest=farthest,
        norms_relative=is_relative and "layer_norm" in _parts(raw["norm_rel_ebd"]),
        buckets=_buckets(num_buckets, farthest, plain.num_positions) if is_relative else (),
        dense_block=DenseBlock(
            activation=read_activation("pooler_hidden_act", raw["pooler_hidden_act"]),
            bias=True,
            norm=HeadNorm.NONE,
        ),
    )


def identity(config: DebertaConfig) -> str:
    return bert.identity_of(
        "deberta-v2",
        config,
        is_relative=config.is_relative,
        content_to_position=config.content_to_position,
        position_to_content=config.position_to_content,
        position_buckets=config.position_buckets,
        farthest=config.farthest,
    )


def dense_block(config: DebertaConfig, pooling: Pooling | None) -> DenseBlock | None:
    return config.dense_block if pooling is Pooling.FIRST else None


def embedding_shapes(config: DebertaConfig) -> Shapes:
    width = config.hidden_width
    table = config.embedding_width or width
    shapes: Shapes = {"embeddings.word": (config.vocab_size, table)}
    if config.has_positions:
        shapes["embeddings.position"] = (config.num_positions, table)
    if config.has_token_types:
        shapes["embeddings.token_type"] = (config.num_token_types, table)
    if table != width:
        shapes |= linear_shapes(PROJECTION, out=width, into=table, bias=False)
    shapes |= norm_shapes("embeddings.norm", width)
    if config.is_relative:
        shapes[RELATIVE] = (2 * config.span, width)
    if config.norms_relative:
        shapes |= norm_shapes(RELATIVE_NORM, width)
    return shapes


def embed(
    encodings: Sequence[Encoding], tables: EmbeddingWeights, config: DebertaConfig
) -> Float[Tensor, "tokens width"]:
    summed = bert.sum_embeddings(encodings, tables, config)
    if tables.projection is not None:
        summed = apply_linear(summed, tables.projection)
    return layer_norm(summed, tables.norm, epsilon=config.layer_norm_epsilon)


def plan_layers(attention: Attention, config: DebertaConfig) -> RunLayer:
    runs = by_runs(attention)
    longest = max(run.length for run in runs.plan)
    places = distances(longest) if config.reads_distances else ()
    rows_of = to_device([_row(it, config) for it in places], runs.device)
    attend = partial(_attend, runs.plan, rows_of, longest, config)
    return partial(bert.run_layer, attend=attend, config=config)


def _attend(
    plan: AttentionPlan,
    rows_of: Int[Tensor, " distances"],
    longest: int,
    config: DebertaConfig,
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
) -> Float[Tensor, "tokens width"]:
    pieces = (
        (tokens, None if near is None else partial(_terms, near, rows_of, longest, config))
        for tokens, near in _pieces(layer, longest, len(hidden), config)
    )
    return attend_in_pieces(
        mixed_qkv(hidden, layer),
        plan,
        pieces,
        num_heads=config.num_heads,
        scale=config.scale,
        dropout=layer.dropout,
    )


def _pieces(
    layer: MixedLayer, longest: int, num_tokens: int, config: DebertaConfig
) -> Iterator[tuple[slice, Float[Tensor, "near three_width"] | None]]:
    """Adjacent tokens under the same maps, with query and key of each distance, scaled.

    The rows of the table run through the layer's maps like tokens: once for the frozen maps, and
    once for each task with changed or own maps. None stands for attention without distances.
    """
    if not config.reads_distances:
        yield slice(0, num_tokens), None
        return
    changed = [span.tokens for span, _ in layer.changed]
    begin, end = (changed[0].start, changed[-1].stop) if changed else (layer.frozen_end,) * 2
    frozen = [it for it in (slice(0, begin), slice(end, layer.frozen_end)) if it.start < it.stop]
    own = [span.tokens for span, _ in layer.own]
    tables = [layer.shared_relative()] * (bool(frozen) + len(changed))
    tables += [weights.relative or layer.shared_relative() for _, weights in layer.own]
    found = [_near_rows(it, longest, config) for it in tables]
    size = len(found[0])
    spans = [TokenSpan(tokens=slice(k * size, (k + 1) * size)) for k in range(len(found))]
    of_tasks = spans[bool(frozen) :]
    rows = replace(
        layer,
        frozen_end=size * (len(found) - len(own)),
        shared_norm_end=size * (len(found) - len(own)),
        changed=tuple(zip(of_tasks, (it for _, it in layer.changed), strict=False)),
        bottleneck=(),
        own=tuple(zip(of_tasks[len(changed) :], (it for _, it in layer.own), strict=True)),
    )
    # Scaled here once, because the distances are far fewer than the pairs of tokens.
    projected = torch.split(mixed_qkv(torch.cat(found), rows) * config.scale, size)
    pieces = [(tokens, projected[0]) for tokens in frozen]
    pieces += zip((*changed, *own), projected[bool(frozen) :], strict=True)
    yield from sorted(pieces, key=lambda piece: piece[0].start)


def _terms(
    near: Float[Tensor, "near three_width"],
    rows_of: Int[Tensor, " distances"],
    longest: int,
    config: DebertaConfig,
    query: Float[Tensor, "rows heads length head_width"],
    key: Float[Tensor, "rows heads length head_width"],
) -> Float[Tensor, "rows heads length length"]:
    """The products with distances; `near` holds their queries and keys, scaled.

    Semantics:
        for i, j in pairs of a query and a key:
            term[i, j] = query[i] @ key of (i - j) + key[j] @ query of (i - j)
    """
    length = query.shape[2]
    (start, _), (first, last) = _bounds(longest, config), _bounds(length, config)
    heads = near[first - start : last - start].view(last - first, 3, config.num_heads, -1)
    of_query, of_key, _ = heads.unbind(1)
    index = by_pair(rows_of, length) - first
    shape = (*query.shape[:2], length, length)
    terms = list[Tensor]()
    if config.content_to_position:
        found = torch.einsum("rhld,nhd->rhln", query, of_key)
        terms.append(found.gather(3, index.expand(shape)))
    if config.position_to_content:
        found = torch.einsum("rhld,nhd->rhln", key, of_query)
        terms.append(found.gather(3, index.t().expand(shape)).transpose(2, 3))
    return terms[0] if len(terms) == 1 else terms[0].add_(terms[1])


def _near_rows(
    relative: RelativePositions, longest: int, config: DebertaConfig
) -> Float[Tensor, "near width"]:
    first, last = _bounds(longest, config)
    rows = relative.table[first:last]
    if relative.norm is None:
        return rows
    return layer_norm(rows, relative.norm, epsilon=config.layer_norm_epsilon)


def _bounds(length: int, config: DebertaConfig) -> tuple[int, int]:
    """First row of the table that texts of `length` tokens read, and the row after the last."""
    reach = config.buckets[length - 1]
    return max(0, config.span - reach), min(2 * config.span, config.span + reach + 1)


def _row(distance: int, config: DebertaConfig) -> int:
    bucket = config.buckets[abs(distance)]
    signed = bucket if distance > 0 else -bucket
    return min(max(config.span + signed, 0), 2 * config.span - 1)


def _buckets(num_buckets: int, farthest: int, longest: int) -> tuple[int, ...]:
    """Bucket of each distance from 0 to `longest` - 1: exact near by, logarithmic farther away.

    These are transformers' operations in transformers' order: other roundings would move the
    borders of the buckets.
    """
    distance = torch.arange(longest)
    if not num_buckets:
        return tuple(range(longest))
    half = num_buckets // 2
    far = torch.where(distance < half, half - 1, distance)
    widest = torch.log(torch.tensor((farthest - 1) / half, dtype=torch.float32))
    bucket = torch.ceil(torch.log(far.float() / half) / widest * (half - 1)) + half
    return tuple(int(it) for it in torch.where(far <= half, distance, bucket.long()))


def _parts(setting: str) -> list[str]:
    return [it.strip() for it in setting.lower().split("|")]


def _check(raw: Mapping[str, Any], *, reads_distances: bool) -> None:
    width, heads = raw["hidden_size"], raw["num_attention_heads"]
    farthest = raw["max_relative_positions"]
    farthest = raw["max_position_embeddings"] if farthest < 1 else farthest
    half, head_width = raw["position_buckets"] // 2, width // heads
    problems = {
        "conv_kernel_size": (raw["conv_kernel_size"] > 0, "0, a model without convolution"),
        "share_att_key": (
            bool(raw["relative_attention"]) and reads_distances and not raw["share_att_key"],
            "true, one map for tokens and distances",
        ),
        "attention_head_size": (
            raw.get("attention_head_size", head_width) != head_width,
            f"{head_width}, the hidden width divided by the heads",
        ),
        "pooler_hidden_size": (
            raw.get("pooler_hidden_size", width) != width,
            f"{width}, the hidden width",
        ),
        "position_buckets": (
            raw["position_buckets"] > 0 and not 0 < half < farthest - 1,
            f"-1, or 2 to {2 * farthest - 3}, by max_relative_positions",
        ),
    }
    for name, (is_wrong, expected) in problems.items():
        if is_wrong:
            raise UnsupportedBackboneError(f"{name} must be {expected}, got {raw[name]!r}")


DEBERTA = Architecture(
    embeddings=EMBEDDINGS,
    layers=bert.BERT.layers,
    parts=LAYER,
    head_sources=bert.BERT.head_sources,
    has_late_norms=True,
    config_from=config_from,
    identity=identity,
    dense_block=dense_block,
    embedding_shapes=embedding_shapes,
    layer_shapes=bert.layer_shapes,
    embed=embed,
    plan_layers=plan_layers,
)
