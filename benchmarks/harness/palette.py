"""The colour and marker of each system in every plot: Okabe and Ito's colours, some darkened.

The colours differ for every colour vision. The markers differ, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nunatak_training.sweeps.reporting import COLOURS, MARKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a plot shows one system."""

    colour: str
    marker: str = "o"


OURS = Look(colour="#009e73")
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "nunatak": OURS,
        "nunatak_bfloat16": Look(colour="#66c5ab", marker="h"),
        "full_models": Look(colour="#d55e00", marker="s"),
        "processes_mapped": Look(colour="#e69f00", marker="D"),
        "processes_private": Look(colour="#cc79a7", marker="v"),
        "peft_mixed": Look(colour="#0072b2", marker="^"),
        "peft_switch": Look(colour="#56b4e9", marker="P"),
        "litserve": Look(colour="#7b4fb5", marker="X"),
        "ray_serve": Look(colour="#a38a00", marker="d"),
    }
)
SERIES = tuple(Look(colour=it, marker=mark) for it, mark in zip(COLOURS, MARKERS, strict=True))
"""Looks of lines that do not stand for a system."""
_SPARE = (*SERIES[1:], *(Look(colour="#7d8590", marker=it) for it in "p<>"))


def looks_of(systems: Sequence[str]) -> list[Look]:
    """Return the look of each system; unknown names get the unused looks."""
    known = {LOOKS[it].colour for it in systems if it in LOOKS}
    spare = iter(look for look in _SPARE if look.colour not in known)
    return [LOOKS[it] if it in LOOKS else next(spare, _SPARE[-1]) for it in systems]
