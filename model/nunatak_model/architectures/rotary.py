"""Rotary positions: each pair of values of a query or key turns with the token's place in its row.

Su et al. 2021 (arXiv:2104.09864), eq. 34. Longer contexts turn slower: all frequencies alike
(`linear`), only the low frequencies (`llama3`; Llama Team 2024, arXiv:2407.21783), or by a ramp
between both (`yarn`; Peng et al. 2023, arXiv:2309.00071, sec. 3). The names and the settings are
those of transformers' `rope_parameters`. Types whose frequencies depend on the longest row of a
batch (`dynamic`, `longrope`) are refused, because each row must be computed as if it were alone.

Layers with rotary positions have norms before the blocks, and feed-forward blocks with gated units
(Shazeer 2020, arXiv:2002.05202, eq. 6). The norm over the output of all layers counts as part of
the last layer. A task that owns the last layer (`topk`, `full`) therefore owns the norm, as
fine-tuning in transformers would train it. All other tasks run the frozen norm.

Axes: tokens = packed tokens of the rows, width = hidden width, query = the query heads side by
side, half = half of a head's width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nunatak_contract.enums import LinearMap
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import UnsupportedBackboneError
from nunatak_model.layer import MixedLayer, add_adapters, mixed_linear, mixed_norm, mixed_qkv
from nunatak_model.ops.attention import Attention
from nunatak_model.ops.linear import ApplyNorm, activate, rms_norm

THETA, CONTEXT, TRUNCATE = "rope_theta", "original_max_position_embeddings", "truncate"
YARN_FAST, YARN_SLOW = 32.0, 1.0
"""Peng et al. 2023, sec. 3.2: turns over the original context, between which the ramp lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Plain rotary positions, and the base of the other types."""

    TYPE: ClassVar[str] = "default"
    rope_theta: float

    @property
    def amplitude(self) -> float:
        return 1.0

    def frequencies(self, width: int, device: torch.device) -> Float[Tensor, " half"]:
        """The angle between neighbouring places, for each pair of a head of this width."""
        # The order of operations is transformers' order: far positions would magnify other
        # roundings.
        return 1.0 / self._powers(width, device)

    def _powers(self, width: int, device: torch.device) -> Float[Tensor, " half"]:
        # Not in the default dtype of torch, which a user's program may set.
        return self.rope_theta ** (
            torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
        )

    def facts(self) -> dict[str, float | str]:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"rope_type": self.TYPE, **settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRope(Rope):
    """All frequencies divided by one factor."""

    TYPE: ClassVar[str] = "linear"
    factor: float

    def frequencies(self, width: int, device: torch.device) -> Float[Tensor, " half"]:
        return Rope.frequencies(self, width, device) / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope(Rope):
    """Low frequencies divided by the factor, high frequencies unchanged."""

    TYPE: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def frequencies(self, width: int, device: torch.device) -> Float[Tensor, " half"]:
        plain = Rope.frequencies(self, width, device)
        context, low, high = (
            self.original_max_position_embeddings,
            self.low_freq_factor,
            self.high_freq_factor,
        )
        wavelengths = 2 * math.pi / plain
        is_long, is_short = wavelengths > context / low, wavelengths < context / high
        smooth = (context / wavelengths - low) / (high - low)
        between = (1 - smooth) * plain / self.factor + smooth * plain
        slowed = torch.where(is_long, plain / self.factor, plain)
        return torch.where(is_long | is_short, slowed, between)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRope(Rope):
    """A ramp from frequencies divided by the factor to unchanged ones."""

    TYPE: ClassVar[str] = "yarn"
    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool
    original_max_position_embeddings: int

    @property
    def amplitude(self) -> float:
        """Peng et al. 2023, sec. 3.4."""
        return self.attention_factor

    def frequencies(self, width: int, device: torch.device) -> Float[Tensor, " half"]:
        powers = self._powers(width, device)
        low, high = self._place(self.beta_fast, width), self._place(self.beta_slow, width)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        if low == high:
            high += 0.001
        places = torch.arange(width // 2, dtype=torch.float32, device=device)
        ramp = ((places - low) / (high - low)).clamp(0, 1)
        kept = 1 - ramp
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept

    def _place(self, num_turns: float, width: int) -> float:
        """The pair that turns so often over the original context."""
        context = self.original_max_position_embeddings
        return (
            width * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(self.rope_theta))
        )


ROPES: Mapping[str, type[Rope]] = {it.TYPE: it for it in (Rope, LinearRope, Llama3Rope, YarnRope)}


def read_rope(settings: Mapping[str, Any], *, theta: object, num_positions: int) -> Rope:
    """Read transformers' settings; `theta` and `num_positions` stand for missing ones."""
    kind, given = _read_type(settings)
    values = {**_defaults(kind, theta=theta, num_positions=num_positions), **given}
    if kind is YarnRope:
        values["attention_factor"] = _amplitude(values)
    wanted = {field.name for field in fields(kind)}
    unknown = given.keys() - wanted - ({"mscale", "mscale_all_dim"} if kind is YarnRope else set())
    if unknown:
        raise UnsupportedBackboneError(
            f"rotary positions of rope_type {kind.TYPE} have no {', '.join(sorted(unknown))}, "
            f"got {dict(settings)}; remove what the model does not use"
        )
    # As floats, because the same setting must have the same digest in every spelling.
    read: dict[str, Any] = {name: _number(name, values.get(name)) for name in wanted - {TRUNCATE}}
    if CONTEXT in read:
        read[CONTEXT] = int(read[CONTEXT])
    if TRUNCATE in wanted:
        read[TRUNCATE] = bool(values[TRUNCATE])
    return kind(**read)


def _read_type(settings: Mapping[str, Any]) -> tuple[type[Rope], dict[str, Any]]:
    given: dict[str, Any] = {
        name: it for name, it in settings.items() if it is not None or name == THETA
    }
    old = given.pop("type", Rope.TYPE)
    name, share = given.pop("rope_type", old), given.pop("partial_rotary_factor", 1.0)
    if name not in ROPES:
        raise UnsupportedBackboneError(
            f"expected rotary positions of rope_type {', '.join(ROPES)}, got {dict(settings)}"
        )
    if share != 1.0:
        raise UnsupportedBackboneError(
            f"expected rotary positions over whole heads, got partial_rotary_factor={share}"
        )
    return ROPES[name], given


def read_flat_rope(raw: Mapping[str, Any], *, default_theta: float) -> Rope:
    settings: Mapping[str, Any] = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    for name in ("partial_rotary_factor", "original_max_position_embeddings"):
        if raw.get(name) not in {None, 1.0, settings.get(name)}:
            raise UnsupportedBackboneError(
                f"expected {name} among the settings of rotary positions alone, got "
                f"{name}={raw[name]} next to {dict(settings)}"
            )
    theta = raw.get("rope_theta", default_theta)
    return read_rope(settings, theta=theta, num_positions=raw["max_position_embeddings"])


def _defaults(kind: type[Rope], *, theta: object, num_positions: int) -> dict[str, Any]:
    found: dict[str, Any] = {THETA: theta}
    if kind in (Llama3Rope, YarnRope):
        found[CONTEXT] = num_positions
    if kind is YarnRope:
        found |= {"beta_fast": YARN_FAST, "beta_slow": YARN_SLOW, TRUNCATE: True}
    return found


def _amplitude(settings: Mapping[str, Any]) -> object:
    """Transformers' default `attention_factor` (Peng et al. 2023, eq. 22)."""
    if "attention_factor" in settings:
        return settings["attention_factor"]
    factor = _number("factor", settings.get("factor"))
    scale, scale_all = settings.get("mscale"), settings.get("mscale_all_dim")

    def amplitude(of: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * of * math.log(factor) + 1.0

    if scale and scale_all:
        return amplitude(_number("mscale", scale)) / amplitude(_number("mscale_all_dim", scale_all))
    return amplitude(1.0)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedBackboneError(
            f"{name} of rotary positions must be a positive number, got {value!r}"
        )
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryAttention:
    """The attention of a layer, with each token's angle for the turn of queries and keys."""

    attend: Attention
    config: BackboneConfig
    cosine: Float[Tensor, "tokens 1 half"]
    sine: Float[Tensor, "tokens 1 half"]

    def __call__(
        self, x: Float[Tensor, "tokens width"], layer: MixedLayer
    ) -> Float[Tensor, "tokens query"]:
        config, qkv = self.config, mixed_qkv(x, layer)
        query, key, _ = config.qkv_widths
        both, value = qkv.tensor_split((query + key,), dim=1)
        heads = both.view(len(qkv), -1, config.head_width)
        if layer.frozen.query_norm is not None:
            heads = _normed_heads(heads, layer, config)
        turned = self._turned(heads).flatten(1).to(qkv.dtype)
        return self.attend(
            torch.cat((turned, value), dim=1),
            num_heads=config.num_heads,
            num_key_heads=config.num_key_heads,
            dropout=layer.dropout,
        )

    def _turned(
        self, heads: Float[Tensor, "tokens heads head_width"]
    ) -> Float[Tensor, "tokens heads head_width"]:
        """Turn each pair (i, i + half) of a head by the token's angles, in float32."""
        first, second = heads.float().chunk(2, dim=-1)
        return torch.cat(
            (first * self.cosine - second * self.sine, second * self.cosine + first * self.sine),
            dim=-1,
        )


def rotary(
    attention: Attention, positions: Int[Tensor, " tokens"], rope: Rope, config: BackboneConfig
) -> RotaryAttention:
    frequencies = rope.frequencies(config.head_width, positions.device)
    angles = (positions.unsqueeze(1).float() * frequencies).unsqueeze(1)
    cosine, sine = angles.cos() * rope.amplitude, angles.sin() * rope.amplitude
    return RotaryAttention(attend=attention, config=config, cosine=cosine, sine=sine)


def _normed_heads(
    heads: Float[Tensor, "tokens heads head_width"], layer: MixedLayer, config: BackboneConfig
) -> Float[Tensor, "tokens heads head_width"]:
    query, key = torch.split(heads, [config.num_heads, config.num_key_heads], dim=1)
    norm = partial(mixed_norm, epsilon=config.layer_norm_epsilon, apply=rms_norm)
    return torch.cat((norm(query, layer, "query_norm"), norm(key, layer, "key_norm")), dim=1)


def run_prenorm_layer(
    hidden: Float[Tensor, "tokens width"],
    layer: MixedLayer,
    *,
    attend: RotaryAttention,
    norm: ApplyNorm,
) -> Float[Tensor, "read width"]:
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
    config, epsilon = attend.config, attend.config.layer_norm_epsilon
    run_norm = partial(mixed_norm, epsilon=epsilon, apply=norm)
    context = attend(run_norm(hidden, layer, "attention_norm"), layer)
    layer, hidden, context = layer.after_attention(hidden, context)
    block = layer.drop(mixed_linear(context, layer, LinearMap.ATTENTION_OUTPUT))
    hidden = hidden + block
    add_adapters(hidden, block, layer, "attention_adapter", norm=None, epsilon=epsilon)
    normed = run_norm(hidden, layer, "output_norm")
    block = layer.run_by_weights(lambda x, own: run_gated_block(x, own, config), normed)
    block = layer.drop(block)
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
