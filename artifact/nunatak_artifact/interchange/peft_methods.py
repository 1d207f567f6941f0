"""LoRA and IA3 of peft as methods here, both ways.

`Lora` and `Ia3` change the same maps in every layer from their first. `Lora` has one rank and one
scale. An adapter with several ranks, or with gaps between its layers, is padded to the largest
rank: zero rows of `down` and zero columns of `up` add nothing. Where scales differ, they are
multiplied into `up`. Padding costs memory and time, but it keeps a batch of tasks one product. A
map without scales gets ones.

Axes: rank, in, out = of one update.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from nunatak_artifact.interchange.transformers_layout import HeldMap
from nunatak_contract.enums import LinearMap
from nunatak_contract.errors import NunatakError
from nunatak_contract.methods import HeadOnly, Ia3, Lora, Method
from nunatak_model import BackboneConfig, maths_of
from nunatak_model.layer import MapChange
from nunatak_model.methods.ia3 import SCALABLE_INPUTS, InputScale, OutputScale
from nunatak_model.methods.lora import LoraUpdate, check_rank

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER: Final = "default"
"""peft's name of the one adapter of a model."""
Site = tuple[int, LinearMap]
"""A layer, and a map of it."""


def native_method(
    adapted: "PeftModel", places: Mapping[str, tuple[HeldMap, ...]], config: BackboneConfig
) -> tuple[Method, dict[str, Tensor]] | None:
    """The adapter as LoRA or IA3 here, with its parameters; None if it is more than that.

    The caller compares the result with the weights that peft merges, because a variant of LoRA may
    hold more than its two factors.
    """
    kind = kind_of(adapted)
    changes = dict[Site, MapChange]()
    for name, module in cast("Any", adapted.get_base_model()).named_modules():
        for place in places.get(name, ()):
            change = _change(kind, module, place)
            if change is not None:
                changes[place.layer, place.target] = change
    try:
        return normalised(changes, config)
    except NunatakError as error:
        if error.code != "invalid_method":
            raise
        return None


def kind_of(adapted: "PeftModel") -> str:
    """Peft's name of the method of an adapted model."""
    config: Any = adapted.peft_config[ADAPTER]
    return str(config.peft_type.value)


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


def normalised(
    changes: Mapping[Site, MapChange], config: BackboneConfig
) -> tuple[Method, dict[str, Tensor]]:
    """Changes of maps as one method with its float32 parameters; without changes, a head alone.

    Raises:
        NunatakError: `invalid_method`, a rank is beyond our limit, or a map is scaled at its input
            in one layer and at its output in another.
    """
    updates = {site: it for site, it in changes.items() if isinstance(it, LoraUpdate)}
    scales = {site: it for site, it in changes.items() if isinstance(it, InputScale | OutputScale)}
    if updates:
        return normalised_lora(updates, config)
    return _normalised_ia3(scales, config) if scales else (HeadOnly(), {})


def normalised_lora(
    updates: Mapping[Site, LoraUpdate], config: BackboneConfig
) -> tuple[Lora, dict[str, Tensor]]:
    """Write updates as one method with its float32 parameters.

    Semantics:
        for each (layer, target), x:
            scale * (x @ down.T) @ up.T  is the same before and after, zero where there was none

    Raises:
        NunatakError: `invalid_method`, a rank is beyond what our method takes.
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
    maths = maths_of(method)
    maths.check(config)
    parameters = {
        name: torch.zeros(shape) for name, shape in maths.parameter_shapes(config).items()
    }
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
    maths = maths_of(method)
    maths.check(config)
    parameters = {name: torch.ones(it) for name, it in maths.parameter_shapes(config).items()}
    for side, own in (("output", outputs), ("input", inputs)):
        for (layer, target), it in own.items():
            parameters[f"layers.{layer}.ia3.{target}.{side}"] = it.scale
    return method, parameters


def _targets(changes: Mapping[Site, MapChange]) -> tuple[LinearMap, ...]:
    return tuple(target for target in LinearMap if any(it == target for _, it in changes))


def peft_fields(method: Lora | Ia3, modules: Mapping[Site, str]) -> dict[str, JsonValue]:
    """The fields of `adapter_config.json` that describe a method over these modules."""

    def named(targets: tuple[LinearMap, ...]) -> list[JsonValue]:
        return [
            name
            for (layer, target), name in modules.items()
            if layer >= method.first_layer and target in targets
        ]

    match method:
        case Lora():
            return {
                "peft_type": "LORA",
                "r": method.rank,
                "lora_alpha": method.alpha,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": named(method.targets),
            }
        case Ia3():
            return {
                "peft_type": "IA3",
                "target_modules": named((*method.scaled_outputs, *method.scaled_inputs)),
                "feedforward_modules": named(method.scaled_inputs),
            }


def peft_tensor(name: str, tensor: Tensor, modules: Mapping[Site, str]) -> tuple[str, Tensor]:
    """Peft's name, without prefix, of a tensor of a layer, and the tensor in peft's shape."""
    _, layer, kind, target, side = name.split(".")
    module = modules[int(layer), LinearMap(target)]
    if kind == "lora":
        return f"{module}.{'lora_A' if side == 'down' else 'lora_B'}.weight", tensor
    return f"{module}.ia3_l", tensor.reshape((1, -1) if side == "input" else (-1, 1))
