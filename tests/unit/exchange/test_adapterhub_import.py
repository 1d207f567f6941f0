"""AdapterHub folders: features without an exact equivalent here are refused by name."""

from pathlib import Path

import pytest

from doubles.adapter_folders import adapterhub_folder
from doubles.backbones import tiny_backbone
from doubles.tasks import CREATED_AT, PROBE_INPUTS
from nunatak_contract.manifest import TaskManifest
from nunatak_exchange.adapterhub_import import import_adapterhub
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_model import Backbone
from nunatak_versions import Provenance, draft_task, head_record, load_task

CONFIG, HEAD = "adapter_config.json", "head_config.json"
WEIGHTS, HEAD_WEIGHTS = "adapter.safetensors", "model_head.safetensors"
FILES = (CONFIG, HEAD, WEIGHTS, HEAD_WEIGHTS)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return adapterhub_folder(tmp_path / "adapter", "bert-houlsby")


@pytest.mark.parametrize("case", ["bert-pfeiffer", "bert-attention-alone"])
def test_an_imported_task_is_drafted_and_loaded_as_any_other(
    case: str, tmp_path: Path, backbone: Backbone
) -> None:
    imported = import_adapterhub(
        Checkpoint(adapterhub_folder(tmp_path / "adapter", case)), backbone
    )
    draft = draft_task(
        "tone",
        method=imported.spec.method,
        head=head_record(imported.spec.head, imported.labels, imported.problem_type),
        parameters=imported.parameters,
        backbone=backbone,
        max_length=32,
        probe_inputs=PROBE_INPUTS,
        provenance=Provenance(created_at=CREATED_AT, note=imported.source),
    )

    manifest = TaskManifest.model_validate({**draft.manifest.model_dump(), "version": 1})
    task = load_task(manifest, draft.blobs["parameters"], backbone)

    assert task.branch.spec == imported.spec
