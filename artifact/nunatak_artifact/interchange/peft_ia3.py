"""IA3 folders of peft.

Read from peft 0.21 (`IA3Config`). A module that `feedforward_modules` names is scaled at its input,
any other at its output. A field we do not know is accepted while it is off (null, false, empty),
and refused otherwise.

`Ia3` scales the same maps in every layer from its first. An adapter that scales a map in some
layers only is written with ones in the others, which change nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import JsonValue
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
from nunatak_contract.methods import Ia3, Method
from nunatak_model import BackboneConfig, maths_of
from nunatak_model.layer import MapChange
from nunatak_model.methods.ia3 import SCALABLE_INPUTS, InputScale, OutputScale
from nunatak_model.weights import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledModule:
    """A module, and the side on which it is scaled."""

    module: Module
    is_at_input: bool

    def shapes(self) -> Shapes:
        """Name, without prefix, and shape of the stored scales."""
        width = self._width()
        return {self._name(): (1, width) if self.is_at_input else (width, 1)}

    def difference(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Describe how many scales are stored, if that number does not fit the module."""
        scales = tensors.get(self._name())
        if scales is None or scales.numel() == self._width():
            return None
        side = "input" if self.is_at_input else "output"
        return (
            f"{self.module.name} has {scales.numel()} scales of its {side} there, "
            f"{self._width()} here"
        )

    def change(self, tensors: Mapping[str, Tensor]) -> MapChange:
        """The stored scales."""
        scale = tensors[self._name()].flatten()
        return InputScale(scale=scale) if self.is_at_input else OutputScale(scale=scale)

    def _width(self) -> int:
        return self.module.into if self.is_at_input else self.module.out

    def _name(self) -> str:
        return f"{self.module.name}.ia3_l"


class Ia3Config(PeftConfig):
    """An IA3 configuration; the fields are documented by peft's `IA3Config`."""

    TITLE: ClassVar[str] = "IA3"
    METHOD: ClassVar[type[Method]] = Ia3

    feedforward_modules: Names | None = None
    init_ia3_weights: bool = True

    def check(self, folder: Path) -> None:
        """Return if the configuration is of plain IA3.

        Raises:
            NunatakError: `unsupported_import`, it uses what we refuse.
        """
        for name, value in (self.__pydantic_extra__ or {}).items():
            if value:
                raise self.unsupported(
                    folder, f"it uses the unknown setting {name} = {str(value)[:80]!r}"
                )
        if self.feedforward_modules is None:
            raise self.unsupported(
                folder,
                "it does not say which modules are scaled at their input (feedforward_modules)",
            )

    def adapted(self, folder: Path, modules: Sequence[Module]) -> tuple[ScaledModule, ...]:
        """The modules, each with its side."""
        names, chosen = [module.name for module in modules], self.feedforward_modules or ()
        if isinstance(chosen, str):
            at_input = match_names(folder, [chosen], names)[0]
        else:
            # peft asks for no dot before the end that a list names.
            at_input = {name for name in names if any(name.endswith(it) for it in chosen)}
        for module in modules:
            is_projection = module.target is not None and module.target not in SCALABLE_INPUTS
            if module.name in at_input and is_projection:
                raise self.unsupported(folder, f"it scales the input of {module.name} alone")
        return tuple(
            ScaledModule(module=module, is_at_input=module.name in at_input) for module in modules
        )

    @classmethod
    def normalised(
        cls, changes: Mapping[Place, MapChange], config: BackboneConfig
    ) -> tuple[Ia3, dict[str, Tensor]]:
        """The scales as one method with its parameters.

        Raises:
            NunatakError: `invalid_method`, a map is scaled at its input in one layer, at its
                output in another.
        """
        outputs = {place: it for place, it in changes.items() if isinstance(it, OutputScale)}
        inputs = {place: it for place, it in changes.items() if isinstance(it, InputScale)}
        method = Ia3(
            scaled_outputs=_targets(outputs),
            scaled_inputs=_targets(inputs),
            first_layer=min(layer for layer, _ in changes),
        )
        maths = maths_of(method)
        maths.check(config)
        shapes = maths.parameter_shapes(config)
        parameters = {name: torch.ones(shape) for name, shape in shapes.items()}
        for side, scales in (("output", outputs), ("input", inputs)):
            for (layer, target), it in scales.items():
                parameters[f"layers.{layer}.ia3.{target}.{side}"] = it.scale.float()
        return method, parameters

    @classmethod
    def fields(cls, method: Method, config: BackboneConfig) -> dict[str, JsonValue]:
        """The fields that describe an `Ia3`."""
        if not isinstance(method, Ia3):
            raise TypeError(f"expected Ia3, got {method}")
        scaled = (*method.scaled_outputs, *method.scaled_inputs)
        targets, at_input = (
            target_pattern(maps, config, first_layer=method.first_layer)
            for maps in (scaled, method.scaled_inputs)
        )
        return {
            "target_modules": targets,
            "feedforward_modules": at_input if method.scaled_inputs else [],
        }

    @classmethod
    def stored(cls, name: str, tensor: Tensor, config: BackboneConfig) -> tuple[str, Tensor]:
        """Peft's name of a vector, and the vector as a row or a column."""
        _, layer, _, target, side = name.split(".")
        module = linear_module(LinearMap(target), int(layer), config)
        shape = (1, -1) if side == "input" else (-1, 1)
        return f"{module}.ia3_l", tensor.reshape(shape)


def _targets(scales: Mapping[Place, MapChange]) -> tuple[LinearMap, ...]:
    return tuple(target for target in LinearMap if any(it == target for _, it in scales))
