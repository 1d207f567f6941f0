"""Every architecture from `backbone add` to HTTP: the answers equal transformers' own pipeline."""

from pathlib import Path

import pytest

from doubles.architecture_walk import COMPARED, walk
from doubles.backbones import FAMILIES, Family


@pytest.mark.parametrize(
    ("family", "num_texts"),
    [("gte", 40), *(pytest.param(it, 200, marks=pytest.mark.slow) for it in FAMILIES)],
)
async def test_trained_tasks_answer_over_http_as_their_exports_in_the_pipeline(
    family: Family, num_texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    differences = await walk(family, num_texts, tmp_path)

    assert differences.keys() == set(COMPARED)
    assert all(it <= 1e-4 for it in differences.values()), differences
