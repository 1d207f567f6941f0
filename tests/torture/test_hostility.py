"""Hostile artefacts and names are refused at once, and leave nothing."""

from functools import partial
from pathlib import Path

from doubles.backbones import tiny_backbone
from doubles.drafts import publish_one
from doubles.names import calls_with_name
from nunatak_registry import Registry
from torture.hostile_artifacts import LIMIT_S, attacks, launch_all
from torture.hostile_names import every_name, try_names

# Another process may hold the CPU for a while; `make torture` measures on a quiet machine.
PATIENCE = 20


def test_hostile_artefacts_are_refused_by_code_and_leave_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry") as registry:
        every = list(attacks(registry, tiny_backbone()))
        tally, longest_s = launch_all(every, tmp_path)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 60
    assert longest_s < PATIENCE * LIMIT_S


def test_hostile_names_are_refused_by_every_call_and_touch_nothing(tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry") as registry:
        publish_one(registry)
        tally, longest_s = try_names(every_name(), partial(calls_with_name, registry), tmp_path)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected >= 200
    assert longest_s < PATIENCE * LIMIT_S
