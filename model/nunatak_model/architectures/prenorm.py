"""Layers with norms before the blocks, rotary positions and gated feed-forward blocks.

Gated units of Shazeer 2020 (arXiv:2002.05202), eq. 6. ModernBERT and the decoders have such layers.

The norm over the output of all layers counts as part of the last layer. A task that owns the last
layer (`topk`, `full`) therefore owns the norm, as fine-tuning in transformers would train it. All
other tasks run the frozen norm.

Axes: tokens = packed tokens of the rows, width = hidden width.
"""

from functools import partial

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nunatak_contract.enums import LinearMap
from nunatak_model.architectures.rotary import RotaryAttention
from nunatak_model.config import BackboneConfig
from nunatak_model.layer import MixedLayer, add_adapters, mixed_linear, mixed_norm, mixed_qkv
from nunatak_model.ops.linear import ApplyNorm, activate


def run_prenorm_layer(
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    attention: RotaryAttention,
    config: BackboneConfig,
    *,
    norm: ApplyNorm,
    dropout: float,
) -> Float[Tensor, "tokens width"]:
    """Run one layer; each row's result equals the result of its task's own layer alone.

    Semantics:
        for row in rows:
            x = hidden[row];  W = frozen, plus the row's task's updates, or its own layer
            a = W.attention_output(attend(turn(W.qkv(W.attention_norm(x)))))
            x = x + a + attention_adapter(a)
            value, gate = W.feedforward_in(W.output_norm(x)).halves
            f = W.feedforward_out(activation(value) * gate)
            out[row] = x + f + feedforward_adapter(f)
        without attention_norm if the layer has none, with final_norm(out) in the last
    """
    epsilon = config.layer_norm_epsilon
    run_norm = partial(mixed_norm, epsilon=epsilon, apply=norm)
    normed = run_norm(hidden, layer, "attention_norm")
    context = attention(mixed_qkv(normed, layer), layer, config, dropout=dropout)
    block = mixed_linear(context, layer, LinearMap.ATTENTION_OUTPUT)
    block = functional.dropout(block, dropout, training=dropout > 0.0)
    hidden = hidden + block
    add_adapters(hidden, block, layer, "attention_adapter", norm=None, epsilon=epsilon)
    normed = run_norm(hidden, layer, "output_norm")
    block = run_gated_block(normed, layer, config)
    block = functional.dropout(block, dropout, training=dropout > 0.0)
    hidden = hidden + block
    add_adapters(hidden, block, layer, "feedforward_adapter", norm=None, epsilon=epsilon)
    return run_norm(hidden, layer, "final_norm")


def run_gated_block(
    x: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    config: BackboneConfig,
    *,
    is_reversed: bool = False,
) -> Float[Tensor, "tokens width"]:
    """The first map gives the values and, behind them (`is_reversed`: before), the gates."""
    inner = mixed_linear(x, layer, LinearMap.FEEDFORWARD_IN)
    value, gate = reversed(inner.chunk(2, dim=1)) if is_reversed else inner.chunk(2, dim=1)
    gated = activate(value, config.activation) * gate
    return mixed_linear(gated, layer, LinearMap.FEEDFORWARD_OUT)
