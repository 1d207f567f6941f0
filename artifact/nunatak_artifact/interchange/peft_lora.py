"""LoRA folders of peft.

The fields are the fields of peft 0.21 (`LoraConfig`); older and newer files have fewer or more. An
unknown field is accepted while it is off (null, false, empty). An unknown field that is on is
refused, since it may change the result.

`Lora` has one rank and one scale for all targets, and adapts every layer from its first. An adapter
with several ranks, or with gaps between its layers, is padded to the largest rank: zero rows of
`down` and zero columns of `up` add nothing. Where scales differ, they are multiplied into `up`.
Padding costs memory and time, but it keeps a batch of tasks one product.

Axes: rank, in, out = of one update.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field, JsonValue
from torch import Tensor

from nunatak_artifact.interchange.peft_config import (
    Module,
    Names,
    PeftConfig,
    Place,
    match_names,
    target_pattern,
)
from nunatak_artifact.interchange.transformers_layout import linear_module
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Lora, Method
from nunatak_model import BackboneConfig, maths_of
from nunatak_model.layer import MapChange
from nunatak_model.methods.lora import LoraUpdate, check_rank
from nunatak_model.weights import Shapes

Positive = Annotated[int, Field(ge=1)]

REFUSED = {
    "use_dora": "DoRA",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "lora_bias": "biases in the low-rank maps (lora_bias)",
    "megatron_config": "Megatron layers (megatron_config)",
    "layer_replication": "replicated layers (layer_replication)",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "target_parameters": "LoRA over bare parameters (target_parameters)",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA (use_bdlora)",
    "arrow_config": "Arrow routing (arrow_config)",
}
IDLE_ALONE = frozenset({"megatron_core", "qalora_group_size"})
"""Settings with a value by default that only a refused feature reads."""

PLAIN_STARTS = frozenset({"true", "false", "gaussian", "eva", "orthogonal"})
"""Values of `init_lora_weights` that leave the base weights alone; others (PiSSA, OLoRA, CorDA,
LoftQ, LoRA-GA) subtract from them, so that the adapter fits only a changed base."""
START_SETTINGS = frozenset({"eva_config", "corda_config", "lora_ga_config", "loftq_config"})
"""Read only while `init_lora_weights` names their method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedModule:
    """A module with the rank and the scale of its low-rank update."""

    module: Module
    rank: int
    scale: float

    def shapes(self) -> Shapes:
        """Names, without prefix, and shapes of both factors."""
        down, up = self._names()
        return {down: (self.rank, self.module.into), up: (self.module.out, self.rank)}

    def difference(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Describe how the stored factors fit another width than the module's; None if they fit."""
        module = self.module
        down, up = (tensors.get(name) for name in self._names())
        if down is None or up is None or not down.dim() == up.dim() == 2:
            return None
        found, wanted = (up.shape[0], down.shape[1]), (module.out, module.into)
        return (
            None
            if found == wanted
            else f"{module.name} maps {found[::-1]} there, {wanted[::-1]} here"
        )

    def change(self, tensors: Mapping[str, Tensor]) -> LoraUpdate:
        """The update of the stored factors."""
        down, up = self._names()
        return LoraUpdate(down=tensors[down], up=tensors[up], scale=self.scale)

    def _names(self) -> tuple[str, str]:
        return f"{self.module.name}.lora_A.weight", f"{self.module.name}.lora_B.weight"


class LoraConfig(PeftConfig):
    """A LoRA configuration; the fields are documented by peft's `LoraConfig`."""

    TITLE: ClassVar[str] = "LoRA"
    METHOD: ClassVar[type[Method]] = Lora

    r: Positive = 8
    lora_alpha: float = 8.0
    lora_dropout: float = 0.0
    use_rslora: bool = False
    bias: str = "none"
    layers_to_transform: tuple[int, ...] | int | None = None
    layers_pattern: Names | None = None
    rank_pattern: dict[str, Positive] | None = None
    alpha_pattern: dict[str, float] | None = None
    init_lora_weights: bool | str = True

    def check(self, folder: Path) -> None:
        """Return if the configuration is of plain LoRA on an unchanged base.

        Raises:
            NunatakError: `unsupported_import`, it uses what we refuse.
        """
        for name, value in (self.__pydantic_extra__ or {}).items():
            if value and name not in IDLE_ALONE | START_SETTINGS:
                found = REFUSED.get(name, f"the unknown setting {name} = {str(value)[:80]!r}")
                raise self.unsupported(folder, f"it uses {found}")
        if self.bias != "none":
            raise self.unsupported(folder, f"it has trained biases (bias={self.bias!r})")
        start = str(self.init_lora_weights).lower()
        if start not in PLAIN_STARTS:
            raise self.unsupported(
                folder, f"it fits a base changed at the start (init_lora_weights={start!r})"
            )
        if isinstance(self.target_modules, str) and self.layers_to_transform:
            # peft refuses this combination, too, except with the text all-linear.
            raise self.unsupported(
                folder, "it chooses layers both by pattern and by layers_to_transform"
            )

    def chosen_layers(self, folder: Path, names: Sequence[str]) -> set[str]:
        """Return the names that lie in a layer of `layers_to_transform`."""
        layers = self.layers_to_transform
        indexes = (layers,) if isinstance(layers, int) else layers
        if not indexes:
            return set(names)
        patterns = self.layers_pattern or (r"[^.]*",)
        patterns = (patterns,) if isinstance(patterns, str) else patterns
        chosen = [rf"(?:(?:^|.*?\.){it}\.\d+\.).*" for it in patterns]
        found = match_names(folder, chosen, names)
        return {name for it in found for name in it if _layer_of(name) in indexes}

    def adapted(self, folder: Path, modules: Sequence[Module]) -> tuple[UpdatedModule, ...]:
        """The modules with their ranks and scales."""
        ranks = _by_pattern(folder, self.rank_pattern or {}, modules, self.r)
        alphas = _by_pattern(folder, self.alpha_pattern or {}, modules, self.lora_alpha)
        return tuple(
            UpdatedModule(
                module=module,
                rank=int(rank),
                scale=alpha / (math.sqrt(rank) if self.use_rslora else rank),
            )
            for module, rank, alpha in zip(modules, ranks, alphas, strict=True)
        )

    @classmethod
    def normalised(
        cls, changes: Mapping[Place, MapChange], config: BackboneConfig
    ) -> tuple[Lora, dict[str, Tensor]]:
        """The updates as one method with its parameters."""
        updates = {place: it for place, it in changes.items() if isinstance(it, LoraUpdate)}
        return normalised_lora(updates, config)

    @classmethod
    def fields(cls, method: Method, config: BackboneConfig) -> dict[str, JsonValue]:
        """The fields that describe a `Lora`."""
        if not isinstance(method, Lora):
            raise TypeError(f"expected Lora, got {method}")
        return {
            "r": method.rank,
            "lora_alpha": method.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": target_pattern(
                method.targets, config, first_layer=method.first_layer
            ),
        }

    @classmethod
    def stored(cls, name: str, tensor: Tensor, config: BackboneConfig) -> tuple[str, Tensor]:
        """Peft's name of a factor, with the factor."""
        _, layer, _, target, side = name.split(".")
        half = "lora_A" if side == "down" else "lora_B"
        module = linear_module(LinearMap(target), int(layer), config)
        return f"{module}.{half}.weight", tensor


def normalised_lora(
    updates: Mapping[Place, LoraUpdate], config: BackboneConfig
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
        targets=tuple(target for target in LinearMap if any(it == target for _, it in updates)),
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


def _layer_of(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _by_pattern(
    folder: Path, values: dict[str, int] | dict[str, float], modules: Sequence[Module], usual: float
) -> list[float]:
    """Return each module's value: of the first pattern that ends its name, else the default."""
    names = [module.name for module in modules]
    found = match_names(folder, [_ending(pattern) for pattern in values], names)
    return [
        next((value for value, it in zip(values.values(), found, strict=True) if name in it), usual)
        for name in names
    ]


def _ending(pattern: str) -> str:
    return rf"(.*\.)?({pattern})"
