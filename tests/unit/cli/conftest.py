"""A small registry for the commands of `nunatak task`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.drafts import make_draft
from nunatak_registry import Registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def registry(folder: Path) -> Iterator[Registry]:
    """Task `intent` with versions 1 to 3 and `intent@prod` moved from 1 to 2."""
    with Registry.open(folder) as opened:
        for seed in (1, 2, 3):
            opened.publish(*make_draft(seed=seed, note=f"seed {seed} [draft]"))
        opened.promote("intent", "prod", 1)
        opened.promote("intent", "prod", 2)
        yield opened


@pytest.fixture
def place(registry: Registry, folder: Path) -> tuple[str, str]:
    assert registry.task("intent").versions == (1, 2, 3)
    return ("--registry", str(folder))
