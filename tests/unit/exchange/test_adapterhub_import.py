"""AdapterHub folders: features without an exact equivalent here are refused by name."""

from pathlib import Path

import pytest
import torch

from doubles.adapter_folders import adapterhub_folder, edit_json, edit_tensors
from doubles.backbones import tiny_backbone
from doubles.hostile_files import HOSTILE_FILES
from doubles.refusals import raises
from doubles.tasks import CREATED_AT, PROBE_INPUTS
from nunatak_contract.manifest import TaskManifest
from nunatak_exchange.adapterhub_import import import_adapterhub
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_model import Backbone
from nunatak_versions import Provenance, draft_task, head_record, load_task

CONFIG, HEAD = "adapter_config.json", "head_config.json"
WEIGHTS, HEAD_WEIGHTS = "adapter.safetensors", "model_head.safetensors"
FILES = (CONFIG, HEAD, WEIGHTS, HEAD_WEIGHTS)

UNSUPPORTED: dict[str, tuple[str, dict[str, object], str]] = {
    "lora": (CONFIG, {"config.architecture": "lora"}, "lora"),
    "union": (CONFIG, {"config.architecture": "union"}, "union"),
    "parallel": (CONFIG, {"config.is_parallel": True}, "is_parallel"),
    "gated": (CONFIG, {"config.use_gating": True}, "use_gating"),
    "compacter": (CONFIG, {"config.phm_layer": True}, "Compacter"),
    "invertible": (CONFIG, {"config.inv_adapter": "nice"}, "invertible"),
    "norm-before": (CONFIG, {"config.ln_before": True}, "ln_before"),
    "norm-after": (CONFIG, {"config.ln_after": True}, "ln_after"),
    "unknown-setting": (CONFIG, {"config.spectral": 1}, "spectral"),
    "non-linearity": (CONFIG, {"config.non_linearity": "mish"}, "mish"),
    "scaling": (CONFIG, {"config.scaling": "random"}, "random"),
    "no-norm": (CONFIG, {"config.original_ln_after": False}, "original_ln_after"),
    "residual": (
        CONFIG,
        {"config.original_ln_before": True, "config.residual_before_ln": "post_add"},
        "post_add",
    ),
    "head-type": (HEAD, {"config.head_type": "masked_lm"}, "masked_lm"),
    "deep-head": (HEAD, {"config.layers": 3}, "3 layers"),
    "deep-head-on-pooler": (HEAD, {"config.use_pooler": True}, "pooler"),
    "head-activation": (HEAD, {"config.activation_function": "relu"}, "relu"),
    "no-offset": (HEAD, {"config.bias": False}, "offset"),
    "head-class": (HEAD, {"config": None, "model_class": "BertForMaskedLM"}, "BertForMaskedLM"),
}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return adapterhub_folder(tmp_path / "adapter", "bert-houlsby")


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_no_plain_bottleneck_is_refused_by_name(
    name: str, folder: Path, backbone: Backbone
) -> None:
    file, changes, named = UNSUPPORTED[name]
    edit_json(folder / file, changes)

    with raises("unsupported_import", match=named):
        import_adapterhub(Checkpoint(folder), backbone)


def test_an_unknown_problem_type_of_the_model_is_refused_by_name(
    folder: Path, backbone: Backbone
) -> None:
    (folder / "config.json").write_text('{"problem_type": "poetry"}')

    with raises("unsupported_import", match="'poetry'"):
        import_adapterhub(Checkpoint(folder), backbone)


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


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, folder: Path, backbone: Backbone) -> None:
    (folder / name).unlink()

    with raises("invalid_folder", match=name):
        import_adapterhub(Checkpoint(folder), backbone)


@pytest.mark.parametrize("name", FILES)
def test_a_link_out_of_the_folder_is_not_followed(
    name: str, folder: Path, tmp_path: Path, backbone: Backbone
) -> None:
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)

    with raises("escaping_file", match=name):
        import_adapterhub(Checkpoint(folder), backbone)


@pytest.mark.parametrize("file", [WEIGHTS, HEAD_WEIGHTS])
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_weights_are_a_corrupt_file(
    name: str, file: str, folder: Path, backbone: Backbone
) -> None:
    (folder / file).write_bytes(HOSTILE_FILES[name])

    with raises("corrupt_file") as caught:
        import_adapterhub(Checkpoint(folder), backbone)

    assert caught.value.fields["file"] == file


@pytest.mark.parametrize("file", [CONFIG, HEAD])
@pytest.mark.parametrize("data", [b"", b"{nope}", b"[]", b"{}", b'{"config":' * 5000])
def test_a_broken_configuration_is_a_corrupt_file(
    data: bytes, file: str, folder: Path, backbone: Backbone
) -> None:
    (folder / file).write_bytes(data)

    with raises("corrupt_file") as caught:
        import_adapterhub(Checkpoint(folder), backbone)

    assert caught.value.fields["file"] == file


@pytest.mark.parametrize(
    ("weights", "pickle"),
    [(WEIGHTS, "pytorch_adapter.bin"), (HEAD_WEIGHTS, "pytorch_model_head.bin")],
)
def test_a_pickle_is_refused_unread_and_says_how_to_save(
    weights: str, pickle: str, folder: Path, backbone: Backbone
) -> None:
    (folder / weights).rename(folder / pickle)

    with raises("pickled_weights", match=f"{pickle}.*use_safetensors=True"):
        import_adapterhub(Checkpoint(folder), backbone)


def test_a_size_other_than_configured_is_refused(folder: Path, backbone: Backbone) -> None:
    edit_json(folder / CONFIG, {"config.reduction_factor": 8})

    with raises("tensor_mismatch", match="of another shape"):
        import_adapterhub(Checkpoint(folder), backbone)


def test_a_size_that_is_left_open_is_refused(folder: Path, backbone: Backbone) -> None:
    edit_json(folder / CONFIG, {"config.reduction_factor": {"0": 16}})

    with raises("invalid_folder", match="neither layer 1 nor a default"):
        import_adapterhub(Checkpoint(folder), backbone)


def test_tensors_of_a_deeper_model_are_refused(folder: Path, backbone: Backbone) -> None:
    name = "bert.encoder.layer.5.output.adapters.tone.adapter_up.bias"
    edit_tensors(folder / WEIGHTS, {name: torch.ones(32)})

    with raises("tensor_mismatch", match=r"layer\.5"):
        import_adapterhub(Checkpoint(folder), backbone)


@pytest.mark.parametrize(
    "changes", [{"model_type": "roberta"}, {"hidden_size": 64}], ids=["type", "width"]
)
def test_another_base_model_is_another_backbone(
    changes: dict[str, object], folder: Path, backbone: Backbone
) -> None:
    edit_json(folder / CONFIG, changes)

    with raises("foreign_backbone"):
        import_adapterhub(Checkpoint(folder), backbone)


def test_labels_are_asked_for_where_the_head_has_none(folder: Path, backbone: Backbone) -> None:
    edit_json(folder / HEAD, {"config.label2id": None})

    with raises("unknown_labels"):
        import_adapterhub(Checkpoint(folder), backbone)
    named = ImportChoices(labels=("a", "b", "c"))
    assert import_adapterhub(Checkpoint(folder), backbone, named).labels == named.labels
