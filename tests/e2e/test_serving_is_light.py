"""A server process imports neither transformers nor peft."""

from pathlib import Path

import httpx
import pytest

from doubles.backbones import save_tiny_backbone
from doubles.tasks import publish_tiny_task
from nunatak_contract.enums import HeadKind
from nunatak_loadtest.processes import ServerProcess
from nunatak_model import load_backbone
from nunatak_registry import Registry

LIBRARIES = ("transformers", "peft", "sentence_transformers", "sentencepiece", "accelerate")


def test_a_server_runs_without_the_libraries_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages of these names that fail at their import stand first on the path of the server."""
    for name in LIBRARIES:
        (tmp_path / "broken" / name).mkdir(parents=True)
        (tmp_path / "broken" / name / "__init__.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise SystemExit({name!r})"
        )
    folder = save_tiny_backbone(tmp_path / "backbone")
    with Registry.open(tmp_path / "registry") as registry:
        for kind in HeadKind:
            publish_tiny_task(registry, load_backbone(folder), task=kind.value, kind=kind)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))

    options = ("--backbone", str(folder))
    with ServerProcess(tmp_path / "registry", options=options, log=tmp_path / "log") as server:
        asked = {"inputs": "where is my parcel?"}
        url = f"{server.url}/v1/tasks/{HeadKind.SEQUENCE_CLASSIFICATION}/predict"
        httpx.post(url, json=asked).raise_for_status()
        httpx.get(f"{server.url}/metrics").raise_for_status()

    assert not (tmp_path / "imported").exists()
