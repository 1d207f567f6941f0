"""What the options of a method, its layers, regularizer and pretraining say together."""

from collections.abc import Mapping

import typer
from pydantic import JsonValue

from nunatak_cli.options import MethodName, RegularizerName

AUTO = "auto"
DEFAULT_TARGET = 0.95
"""The share of full fine-tuning's score that Lee et al. 2019 hold to be good enough."""
SETTINGS_OF_METHOD: Mapping[MethodName, frozenset[str]] = {
    MethodName.TOPK: frozenset({"layers", "frozen"}),
    MethodName.HEAD: frozenset(),
    MethodName.BOTTLENECK: frozenset({"size", "first_layer"}),
    MethodName.LORA: frozenset({"rank", "alpha", "targets", "first_layer"}),
    MethodName.FULL: frozenset(),
}


def method_settings(
    method: MethodName, given: Mapping[str, float | str | None]
) -> dict[str, float | str]:
    """Return the settings that were given, if they are those of the method.

    Raises:
        typer.BadParameter: a setting of another method, or two that exclude each other.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    foreign = [name for name in chosen if name not in SETTINGS_OF_METHOD[method]]
    if foreign:
        option = f"--{foreign[0].replace('_', '-')}"
        owners = " and ".join(
            owner for owner, names in SETTINGS_OF_METHOD.items() if foreign[0] in names
        )
        raise typer.BadParameter(f"{option} belongs to --method {owners}, not to {method}")
    if {"layers", "frozen"} <= chosen.keys():
        raise typer.BadParameter("--layers and --frozen say the same; give one of them")
    return chosen


def tapt_settings(epochs: int | None, learning_rate: float | None) -> dict[str, JsonValue] | None:
    """Return the settings that were given, if any.

    Raises:
        typer.BadParameter: a rate of no pretraining.
    """
    if epochs is None:
        if learning_rate is not None:
            raise typer.BadParameter("--tapt-learning-rate belongs to --tapt-epochs")
        return None
    return {"epochs": epochs, "learning_rate": learning_rate}


def layer_settings(
    layers: str | None, target: float | None, method: MethodName, frozen: int | None
) -> tuple[int | None, float | None]:
    """Read a number of layers, or the share that the fewest are to keep.

    Raises:
        typer.BadParameter: it is neither, or a share without `auto`.
    """
    if layers == AUTO:
        if method is not MethodName.TOPK or frozen is not None:
            raise typer.BadParameter("--layers auto belongs to --method topk, without --frozen")
        share = DEFAULT_TARGET if target is None else target
        if not 0 < share <= 1:
            raise typer.BadParameter(f"--target must be above 0 and at most 1, got {share:g}")
        return None, share
    if target is not None:
        raise typer.BadParameter("--target belongs to --layers auto")
    if layers is None:
        return None, None
    if not layers.isdecimal() or int(layers) < 1:
        raise typer.BadParameter(f"--layers must be a number from 1 up or {AUTO}, got {layers!r}")
    return int(layers), None


def regularizer_settings(
    name: RegularizerName | None, rate: float | None
) -> dict[str, JsonValue] | None:
    """Return the settings that were given, if any.

    Raises:
        typer.BadParameter: a rate of no regularizer.
    """
    if name is None:
        if rate is not None:
            raise typer.BadParameter("--regularizer-rate belongs to --regularizer")
        return None
    return {"name": name.value} if rate is None else {"name": name.value, "rate": rate}
