"""MPNet: BERT's layers with a bias for each distance between two tokens (Song et al. 2020).

"MPNet: Masked and Permuted Pre-training for Language Understanding" (arXiv:2004.09297). The biases
are T5's (Raffel et al. 2020, arXiv:1910.10683, sec. 2.1): far distances share a bias, and all
layers share one table of biases.

Axes: tokens = packed tokens of the rows, width = hidden width, heads = attention heads, length,
longest = tokens of a row, and of the longest row.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nunatak_model.architectures import bert
from nunatak_model.architectures.base import RunLayer
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.layer import MixedLayer, mixed_qkv
from nunatak_model.ops.attention import (
    Attention,
    AttentionPlan,
    attend_in_pieces,
    by_pair,
    by_runs,
    distances,
)
from nunatak_model.ops.device import to_device
from nunatak_model.weights import RELATIVE, RelativePositions, Shapes

PADDING_ID = 1
"""transformers' code has this number, whatever `config.json` says."""
NUM_BUCKETS = 32
"""Number of biases of each head; also fixed."""
BORDERS = (*range(1, 9), 12, 16, 23, 32, 46, 64, 91)
"""The least distance in each bucket but the first, as transformers computes it. To compute it at
the import with torch would wait forever in a process forked after work on several threads."""
DEFAULTS: Mapping[str, object] = {
    **bert.DEFAULTS,
    "vocab_size": 30_527,
    "pad_token_id": PADDING_ID,
    "relative_attention_num_buckets": NUM_BUCKETS,
}
LAYER = {
    **bert.LAYER,
    "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "attention_output": ("attention.attn.o",),
    "attention_norm": ("attention.LayerNorm",),
}


def config_from(raw: dict[str, Any]) -> BackboneConfig:
    raw = {**DEFAULTS, **raw}
    if raw["relative_attention_num_buckets"] != NUM_BUCKETS:
        raise UnsupportedBackboneError(
            f"expected relative_attention_num_buckets={NUM_BUCKETS}, the number that transformers' "
            f"MPNet reads, got {raw['relative_attention_num_buckets']!r}"
        )
    if raw["pad_token_id"] != PADDING_ID:
        raise UnsupportedBackboneError(
            f"expected pad_token_id={PADDING_ID}, from which transformers' MPNet counts positions, "
            f"got {raw['pad_token_id']!r}"
        )
    fixed = {"type_vocab_size": 1, "position_embedding_type": None}
    return replace(bert.read_encoder({**raw, **fixed}, from_padding=True), has_pair_terms=True)


def embedding_shapes(config: BackboneConfig) -> Shapes:
    return {**bert.shapes_without_types(config), RELATIVE: (NUM_BUCKETS, config.num_heads)}


def plan_layers(attention: Attention, config: BackboneConfig) -> RunLayer:
    runs = by_runs(attention)
    longest = max(run.length for run in runs.plan)
    buckets = to_device([_bucket(it) for it in distances(longest)], runs.device)
    biases = _Biases(buckets=buckets, longest=longest)
    attend = partial(_attend, runs.plan, biases, config)
    return partial(bert.run_layer, attend=attend, config=config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Biases:
    """The biases of all pairs of tokens, made once for each table and kept for the layers above."""

    buckets: Int[Tensor, " distances"]
    longest: int
    known: list[tuple[RelativePositions, Tensor]] = field(
        default_factory=list[tuple[RelativePositions, Tensor]]
    )

    def of(
        self, relative: RelativePositions, dtype: torch.dtype
    ) -> Float[Tensor, "heads longest longest"]:
        found = next((it for table, it in self.known if table is relative), None)
        if found is None:
            by_distance = relative.table.index_select(0, self.buckets).t().to(dtype)
            found = by_pair(by_distance, self.longest)
            self.known.append((relative, found))
        return found


def _attend(
    plan: AttentionPlan,
    biases: _Biases,
    config: BackboneConfig,
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
) -> Float[Tensor, "tokens width"]:
    qkv = mixed_qkv(hidden, layer)
    pieces = (
        (tokens, partial(_terms, biases=biases.of(relative, qkv.dtype)))
        for tokens, relative in _pieces(layer, len(hidden))
    )
    return attend_in_pieces(
        qkv,
        plan,
        pieces,
        num_heads=config.num_heads,
        scale=config.head_width**-0.5,
        dropout=layer.dropout,
    )


def _pieces(layer: MixedLayer, num_tokens: int) -> Iterator[tuple[slice, RelativePositions]]:
    start = 0
    for span, weights in layer.own:
        if weights.relative is not None:
            if start < span.tokens.start:
                yield slice(start, span.tokens.start), layer.shared_relative()
            yield span.tokens, weights.relative
            start = span.tokens.stop
    if start < num_tokens:
        yield slice(start, num_tokens), layer.shared_relative()


def _terms(
    query: Float[Tensor, "rows heads length head_width"],
    key: Float[Tensor, "rows heads length head_width"],
    *,
    biases: Float[Tensor, "heads longest longest"],
) -> Float[Tensor, "1 heads length length"]:
    del key
    length = query.shape[2]
    # A bias depends on the distance alone, so shorter rows read the first rows and columns.
    return biases[:, :length, :length].unsqueeze(0)


def _bucket(distance: int) -> int:
    """The row of the table for the distance query - key; keys behind the query have the first."""
    near = bisect_right(BORDERS, abs(distance))
    return near + NUM_BUCKETS // 2 if distance < 0 else near


MPNET = replace(
    bert.BERT,
    embeddings={**bert.WITHOUT_TYPES, RELATIVE: "encoder.relative_attention_bias.weight"},
    parts=LAYER,
    config_from=config_from,
    identity=partial(bert.identity_of, "mpnet"),
    embedding_shapes=embedding_shapes,
    plan_layers=plan_layers,
)
