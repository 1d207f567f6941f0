from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.terminals import nunatak
from nunatak_model import Encoding
from nunatak_training.report import Report
from nunatak_training.trunk import DiskTrunkStore


def test_what_is_kept_is_shown_until_it_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_CACHE", str(tmp_path))
    wanted = [Encoding(token_ids=(5, 6), type_ids=(0, 0))]
    DiskTrunkStore().states(
        tiny_backbone(num_layers=2), wanted, depth=1, progress=Report().prepared
    )

    shown, listed = nunatak("cache", "show"), nunatak("cache", "show", "--json").json()
    cleared = nunatak("cache", "clear")

    assert "trunk states" in shown.stdout
    assert listed["num_bytes"] == 2 * 32 * 4
    assert cleared.stdout.startswith("0 bytes in ")
    assert nunatak("cache", "show", "--json").json()["states"] == []
