"""Folders of any kind as drafts."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from doubles.backbones import tiny_backbone
from doubles.checkpoints import save_checkpoint
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from nunatak_contract.enums import HeadKind, ImportFormat
from nunatak_contract.manifest import MAX_NOTE_CHARS, TaskManifest
from nunatak_contract.methods import TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices, ImportedTask
from nunatak_exchange.importing import draft_imported, import_folder, kind_of
from nunatak_exchange.reference import PROBE_INPUTS
from nunatak_exchange.transformers_import import Divergence, find_divergence
from nunatak_model import Backbone
from nunatak_versions import VersionDraft, load_task

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def drafted(
    bert: TwinFactory, imported: ImportedTask, *, task: str = "tone", note: str = "for the desk"
) -> VersionDraft:
    return draft_imported(task, imported, bert.backbone, origin="tuned", created_at=NOW, note=note)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=3)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"config.json": {}}, ImportFormat.TRANSFORMERS),
        ({"adapter_config.json": {"peft_type": "LORA"}, "config.json": {}}, ImportFormat.PEFT),
        ({"adapter_config.json": {"config": {"reduction_factor": 16}}}, ImportFormat.ADAPTERHUB),
    ],
)
def test_the_kind_of_a_folder_is_told_by_its_files(
    tmp_path: Path, files: dict[str, dict[str, object]], kind: ImportFormat
) -> None:
    for name, fields in files.items():
        (tmp_path / name).write_text(json.dumps(fields))

    assert kind_of(Checkpoint(tmp_path)) is kind


def test_folders_of_no_known_kind_are_refused(tmp_path: Path) -> None:
    with raises("invalid_folder", match="neither"):
        kind_of(Checkpoint(tmp_path))
    with raises("invalid_folder", match="no such folder"):
        kind_of(Checkpoint(tmp_path / "nowhere"))
    for name in ("tone", "intent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    with raises("invalid_folder", match="name one of its folders: intent, tone"):
        kind_of(Checkpoint(tmp_path))


def test_tasks_of_our_own_are_pulled_not_imported(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")

    with raises("unsupported_import", match="nunatak task pull"):
        kind_of(Checkpoint(tmp_path))


@pytest.mark.parametrize("kind", [HeadKind.TOKEN_CLASSIFICATION, HeadKind.QUESTION_ANSWERING])
def test_every_kind_of_head_becomes_a_version_that_loads(
    bert: TwinFactory, tmp_path: Path, kind: HeadKind
) -> None:
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1), kind=kind)

    draft = drafted(bert, import_folder(Checkpoint(tmp_path), bert.backbone))

    manifest = TaskManifest(**draft.manifest.model_dump(), version=1)
    loaded = load_task(manifest, draft.blobs["parameters"], bert.backbone)
    assert loaded.branch.split_depth == 3
    assert manifest.probe.inputs == PROBE_INPUTS
    assert (manifest.max_length, manifest.metrics, manifest.data) == (40, (), None)
    assert manifest.note.startswith("imported from tuned: Bert")
    assert manifest.note.endswith("; for the desk")


def test_what_the_folder_does_not_say_is_as_long_as_the_backbone_reads(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()

    draft = drafted(bert, import_folder(Checkpoint(tmp_path), bert.backbone))

    assert draft.manifest.max_length == bert.backbone.config.max_tokens


def test_labels_that_no_head_can_have_are_refused(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path)
    unnamed = ImportChoices(labels=("a", "b", ""))
    blank = import_folder(Checkpoint(tmp_path), bert.backbone, choices=unnamed)

    with raises("invalid_folder", match="labels and head do not fit"):
        drafted(bert, blank)


@pytest.mark.parametrize(
    ("kind", "length", "code"),
    [
        (HeadKind.SEQUENCE_CLASSIFICATION, 3, "invalid_folder"),
        (HeadKind.TOKEN_CLASSIFICATION, 5, "unpublishable"),
    ],
)
def test_a_length_that_holds_no_text_is_refused(
    bert: TwinFactory, tmp_path: Path, kind: HeadKind, length: int, code: str
) -> None:
    save_checkpoint(bert, tmp_path, kind=kind)
    edit(tmp_path / "tokenizer_config.json", {"model_max_length": length})
    imported = import_folder(Checkpoint(tmp_path), bert.backbone)

    with raises(code, match=r"at least \d tokens|expected at least 4"):
        drafted(bert, imported)


def test_a_remark_is_kept_whole_or_refused(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path)
    imported = import_folder(Checkpoint(tmp_path), bert.backbone)
    remark = "x" * (MAX_NOTE_CHARS - 9)

    assert drafted(bert, imported, note=remark).manifest.note == f"importe; {remark}"
    with raises("unpublishable", match="note: expected at most 4096 characters"):
        drafted(bert, imported, note=2 * remark)


def test_all_checks_of_a_folder_see_the_same_settings(tmp_path: Path) -> None:
    """A file that changes between two checks must not pass one of them and serve the other."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.config == {"model_type": "bert"}
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    assert checkpoint.json("config.json") == checkpoint.config == {"model_type": "bert"}


def test_a_file_beyond_a_smaller_limit_is_refused_although_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.read("config.json")
    with raises("corrupt_file", match="at most 1 are read"):
        checkpoint.read("config.json", limit=1)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((), "no layer differs: head on all 6 layers"),
        ((5,), "layer 5 differs: top-1 of 6"),
        ((3, 4, 5), "layers 3-5 differ: top-3 of 6"),
        ((0, 3, 4), "layers 0, 3-4 differ: top-6 of 6"),
        ((1, 3, 5), "layers 1, 3, 5 differ: top-5 of 6"),
    ],
)
def test_layers_are_reported_as_ranges(layers: tuple[int, ...], text: str) -> None:
    assert Divergence(embeddings=False, layers=layers, num_layers=6).describe() == text
    full = Divergence(embeddings=True, layers=layers, num_layers=6)
    assert full.describe() == "the embeddings differ: a full copy"


def test_every_single_tensor_is_looked_at(backbone: Backbone) -> None:
    equal = find_divergence(dict(backbone.parameters), backbone)
    assert (equal.embeddings, equal.layers) == (False, ())
    for name, tensor in backbone.parameters.items():
        bumped = tensor.clone()
        bumped.view(-1)[-1] = torch.nextafter(bumped.view(-1)[-1], torch.tensor(9.0))

        found = find_divergence({**backbone.parameters, name: bumped}, backbone)

        assert found.embeddings or found.layers, name


@pytest.mark.parametrize(
    ("said", "default"), [(None, None), ("b", "b"), ("none", None)], ids=["", "named", "none"]
)
def test_the_default_label_of_an_import_is_named_and_never_guessed(
    bert: TwinFactory, tmp_path: Path, said: str | None, default: str | None
) -> None:
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1), num_labels=2)
    choices = ImportChoices(labels=("a", "b"), default_label=said)
    imported = import_folder(Checkpoint(tmp_path), bert.backbone, choices=choices)

    draft = draft_imported(
        "tone", imported, bert.backbone, origin="tuned", created_at=NOW, choices=choices
    )

    assert draft.manifest.head.default_label == default
