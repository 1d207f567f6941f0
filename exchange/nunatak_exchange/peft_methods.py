"""LoRA and IA3 of peft as methods here, both ways.

`Lora` and `Ia3` change the same maps in every layer from their first. `Lora` has one rank and one
scale. An adapter with several ranks, or with gaps between its layers, is padded to the largest
rank: zero rows of `down` and zero columns of `up` add nothing. Where scales differ, they are
multiplied into `up`. Padding costs memory and time, but it keeps a batch of tasks one product. A
map without scales gets ones.

A module of transformers may hold several maps (`Wqkv`), and a map may consist of several modules
(`gate_proj` and `up_proj`). Updates of parts become one update of the whole, in blocks.

Axes: rank, in, out = of one update.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from jaxtyping import Float
from pydantic import JsonValue
from torch import Tensor

from nunatak_contract.enums import LinearMap
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import HeadOnly, Ia3, Lora, Method
from nunatak_exchange.transformers_layout import HeldMap
from nunatak_model import BackboneConfig, maths_of
from nunatak_model.layer import MapChange
from nunatak_model.methods.base import map_widths
from nunatak_model.methods.ia3 import SCALABLE_INPUTS, InputScale, OutputScale
from nunatak_model.methods.lora import check_rank
from nunatak_model.ops.low_rank import LoraUpdate

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER: Final = "default"
Site = tuple[int, LinearMap]


def native_method(
    kind: str,
    adapted: "PeftModel",
    places: Mapping[str, tuple[HeldMap, ...]],
    config: BackboneConfig,
) -> tuple[Method, dict[str, Tensor]] | None:
    """The adapter as LoRA or IA3 here, with its parameters; None if it is more than that.

    The caller compares the result with the weights that peft merges, because a variant of LoRA may
    hold more than its two factors.
    """
    parts = defaultdict[Site, list[tuple[slice, MapChange]]](list)
    for name, module in cast("Any", adapted.get_base_model()).named_modules():
        for place in places.get(name, ()):
            change = _change(kind, module, place)
            if change is not None:
                parts[place.layer, place.target].append((place.part, change))
    changes = dict[Site, MapChange]()
    for (layer, target), own in parts.items():
        whole = _joined(own, map_widths(target, layer, config)[0])
        if whole is None:
            return None
        changes[layer, target] = whole
    try:
        return normalised(changes, config)
    except NunatakError as error:
        if error.code != "invalid_method":
            raise
        return None


def _change(kind: str, module: Any, place: HeldMap) -> MapChange | None:  # noqa: ANN401 - a module
    if kind == "LORA" and ADAPTER in getattr(module, "lora_A", ()):
        return LoraUpdate(
            down=module.lora_A[ADAPTER].weight.detach().float(),
            up=module.lora_B[ADAPTER].weight.detach()[place.rows].float(),
            scale=float(module.scaling[ADAPTER]),
        )
    if kind == "IA3" and ADAPTER in getattr(module, "ia3_l", ()):
        scale = module.ia3_l[ADAPTER].detach().flatten().float()
        if not module.is_feedforward:
            return OutputScale(scale=scale[place.rows])
        return InputScale(scale=scale) if place.target in SCALABLE_INPUTS else None
    return None


def _joined(parts: Sequence[tuple[slice, MapChange]], num_rows: int) -> MapChange | None:
    """Changes of parts of a map as one change; None if they are of different kinds."""
    updates = [(rows, it) for rows, it in parts if isinstance(it, LoraUpdate)]
    if len(updates) == len(parts):
        scale = updates[0][1].scale or 1.0
        factors = [(rows, it.down, it.up * (it.scale / scale)) for rows, it in updates]
        down, up = _stacked(factors, num_rows)
        return LoraUpdate(down=down, up=up, scale=scale)
    outputs = [(rows, it.scale) for rows, it in parts if isinstance(it, OutputScale)]
    if len(outputs) == len(parts):
        return OutputScale(scale=_filled(outputs, num_rows))
    # Parts read one input. If their scales differ, the comparison of the caller fails.
    return parts[0][1] if all(isinstance(it, InputScale) for _, it in parts) else None


def _stacked(
    parts: Sequence[tuple[slice, Tensor, Tensor]], num_rows: int
) -> tuple[Float[Tensor, "rank in"], Float[Tensor, "out rank"]]:
    """Updates of parts of a map, each with its rows and both factors, as one update of the map.

    Parts with equal first factors share that factor, so that an export comes back with its rank.
    """
    downs = list[Tensor]()
    for _, down, _ in parts:
        if not any(torch.equal(it, down) for it in downs):
            downs.append(down)
    starts = [0, *accumulate(map(len, downs))]
    ups = torch.zeros(num_rows, starts[-1])
    for rows, down, up in parts:
        start = next(it for it, own in zip(starts, downs, strict=False) if torch.equal(own, down))
        ups[rows, start : start + len(down)] = up
    return torch.cat(downs), ups


def _filled(parts: Sequence[tuple[slice, Tensor]], num_rows: int) -> Float[Tensor, " out"]:
    """Scales of parts of a map; ones elsewhere."""
    scale = torch.ones(num_rows)
    for rows, own in parts:
        scale[rows] = own
    return scale


def normalised(
    changes: Mapping[Site, MapChange], config: BackboneConfig
) -> tuple[Method, dict[str, Tensor]]:
    """Changes of maps as one method with its float32 parameters; without changes, a head alone."""
    updates = {site: it for site, it in changes.items() if isinstance(it, LoraUpdate)}
    scales = {site: it for site, it in changes.items() if isinstance(it, InputScale | OutputScale)}
    if updates:
        return normalised_lora(updates, config)
    return _normalised_ia3(scales, config) if scales else (HeadOnly(), {})


def new_parameters(
    method: Method, config: BackboneConfig, fill: Callable[[tuple[int, ...]], Tensor]
) -> dict[str, Tensor]:
    maths = maths_of(method)
    maths.check(config)
    return {name: fill(shape) for name, shape in maths.parameter_shapes(config).items()}


def normalised_lora(
    updates: Mapping[Site, LoraUpdate], config: BackboneConfig
) -> tuple[Lora, dict[str, Tensor]]:
    """Write updates as one method with its float32 parameters.

    Semantics:
        for each (layer, target), x:
            scale * (x @ down.T) @ up.T  is the same before and after, zero where there was none
    """
    rank = max(update.down.shape[0] for update in updates.values())
    check_rank(rank)
    scales = {update.scale for update in updates.values()}
    scale = min(scales) if len(scales) == 1 and min(scales) > 0.0 else 1.0
    method = Lora(
        rank=rank,
        alpha=scale * rank,
        targets=_targets(updates),
        first_layer=min(layer for layer, _ in updates),
    )
    parameters = new_parameters(method, config, torch.zeros)
    for (layer, target), update in updates.items():
        prefix, own_rank = f"layers.{layer}.lora.{target}", update.down.shape[0]
        parameters[f"{prefix}.down"][:own_rank] = update.down
        parameters[f"{prefix}.up"][:, :own_rank] = update.up * (update.scale / scale)
    return method, parameters


def _normalised_ia3(
    scales: Mapping[Site, InputScale | OutputScale], config: BackboneConfig
) -> tuple[Ia3, dict[str, Tensor]]:
    outputs = {site: it for site, it in scales.items() if isinstance(it, OutputScale)}
    inputs = {site: it for site, it in scales.items() if isinstance(it, InputScale)}
    method = Ia3(
        scaled_outputs=_targets(outputs),
        scaled_inputs=_targets(inputs),
        first_layer=min(layer for layer, _ in scales),
    )
    parameters = new_parameters(method, config, torch.ones)
    for side, own in (("output", outputs), ("input", inputs)):
        for (layer, target), it in own.items():
            parameters[f"layers.{layer}.ia3.{target}.{side}"] = it.scale
    return method, parameters


def _targets(changes: Mapping[Site, MapChange]) -> tuple[LinearMap, ...]:
    return tuple(target for target in LinearMap if any(it == target for _, it in changes))


def to_peft(
    method: Lora | Ia3, parameters: Mapping[str, Tensor], places: Mapping[str, tuple[HeldMap, ...]]
) -> tuple[dict[str, JsonValue], dict[str, Tensor]]:
    """The fields of `adapter_config.json` and the tensors of a method, by peft's names."""
    own = {
        module: [it for it in held if it.layer >= method.first_layer]
        for module, held in places.items()
    }
    match method:
        case Lora():
            return _lora_to_peft(method, parameters, own)
        case Ia3():
            return _ia3_to_peft(method, parameters, own)


def _lora_to_peft(
    method: Lora, parameters: Mapping[str, Tensor], places: Mapping[str, Sequence[HeldMap]]
) -> tuple[dict[str, JsonValue], dict[str, Tensor]]:
    tensors, ranks = dict[str, Tensor](), dict[str, int]()
    for module, held in places.items():
        factors = [
            (it.rows, parameters[f"{prefix}.down"], parameters[f"{prefix}.up"][it.part])
            for it in held
            if it.target in method.targets
            for prefix in [f"layers.{it.layer}.lora.{it.target}"]
        ]
        if factors:
            down, up = _stacked(factors, held[-1].rows.stop)
            tensors |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
            ranks[module] = len(down)
    wider = {module: rank for module, rank in ranks.items() if rank != method.rank}
    fields: dict[str, JsonValue] = {
        "peft_type": "LORA",
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [*ranks],
        "rank_pattern": {**wider},
        "alpha_pattern": {module: rank * method.scale for module, rank in wider.items()},
    }
    return fields, tensors


def _ia3_to_peft(
    method: Ia3, parameters: Mapping[str, Tensor], places: Mapping[str, Sequence[HeldMap]]
) -> tuple[dict[str, JsonValue], dict[str, Tensor]]:
    outputs, inputs = dict[str, Tensor](), dict[str, Tensor]()
    for module, held in places.items():
        scales = [
            (it.rows, parameters[f"layers.{it.layer}.ia3.{it.target}.output"][it.part])
            for it in held
            if it.target in method.scaled_outputs
        ]
        if scales:
            outputs[f"{module}.ia3_l"] = _filled(scales, held[-1].rows.stop).unsqueeze(1)
        for it in held:
            if it.target in method.scaled_inputs:
                scale = parameters[f"layers.{it.layer}.ia3.{it.target}.input"]
                inputs[f"{module}.ia3_l"] = scale.unsqueeze(0)
    fields: dict[str, JsonValue] = {
        "peft_type": "IA3",
        "target_modules": [name.removesuffix(".ia3_l") for name in (*outputs, *inputs)],
        "feedforward_modules": [name.removesuffix(".ia3_l") for name in inputs],
    }
    return fields, {**outputs, **inputs}
