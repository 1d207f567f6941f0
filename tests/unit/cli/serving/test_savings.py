from pathlib import Path
from typing import Any

import pytest

from doubles.backbones import save_tiny_backbone, tiny_backbone
from doubles.terminals import nunatak
from nunatak_contract.enums import HeadKind, Pooling
from nunatak_model import model_size, parameters_saved, usual_head


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> str:
    save_tiny_backbone(tmp_path / "tiny", num_layers=3)
    return str(tmp_path / "tiny")


def test_every_number_of_own_layers_has_the_share_of_the_formula(folder: str) -> None:
    found: Any = nunatak("savings", "--backbone", folder, "--tasks", "8", "--json").json()

    config = tiny_backbone(num_layers=3).config
    head = usual_head(
        config, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2, pooling=Pooling.MEAN
    )
    size = model_size(config, head)
    assert [row["own_layers"] for row in found["by_own_layers"]] == [0, 1, 2, 3]
    for row in found["by_own_layers"]:
        saved = parameters_saved(size, num_tasks=8, num_frozen=row["frozen_layers"])
        assert row["frozen_layers"] == 3 - row["own_layers"]
        assert row["saved_share"] == pytest.approx(saved, rel=1e-9)
        shared = found["dedicated_bytes"] * (1 - row["saved_share"])
        assert row["shared_bytes"] == pytest.approx(shared, abs=1)


def test_people_get_a_table(folder: str) -> None:
    shown = nunatak("savings", "--backbone", folder, "--tasks", "2").stdout

    assert "2 full models, MB" in shown
    assert "own layers" in shown


def test_a_backbone_that_is_not_there_is_refused() -> None:
    refused = nunatak("savings", "--backbone", "./nothing-here", "--tasks", "2")

    assert refused.exit_code == 1
    assert "backbone_not_found" in refused.stderr
