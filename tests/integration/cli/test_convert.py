"""`nunatak task convert`: a version moves to the integers of its backbone, if its score stays."""

import shutil
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

import nunatak_versions
from doubles.backbones import save_tiny_backbone
from doubles.examples import SHORT_TRAINING, toy_rows, write_jsonl
from doubles.terminals import Ran, nunatak
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_model import Backbone, load_backbone, tensors_from_bytes, tensors_to_bytes
from nunatak_registry import Registry
from nunatak_training.kinds import TaskKind
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainSettings, train
from nunatak_versions import VersionDraft

QUICK: dict[str, JsonValue] = {**SHORT_TRAINING, "epochs": 4}
LORA = Lora(rank=4, alpha=16.0, targets=QUERY_AND_VALUE)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_backbone(tmp_path_factory.mktemp("convert") / "backbone")


def learnable_rows(kind: TaskKind, count: int, seed: int) -> list[dict[str, JsonValue]]:
    """Rows that a few epochs teach: sets of one label for tasks of several labels."""
    if kind is not TaskKind.MULTI_LABEL:
        return toy_rows(kind, count, seed=seed)
    rows = toy_rows(TaskKind.SINGLE_LABEL, count, seed=seed)
    return [{"text": row["text"], "labels": [row["label"]]} for row in rows]


def trained(
    folder: Path,
    backbone: Path,
    kind: TaskKind,
    method: Method,
    *,
    changes: dict[str, JsonValue] = QUICK,
    note: str = "the first one",
) -> Path:
    (folder / "data").mkdir()
    for seed, (part, count) in enumerate({"train": 96, "dev": 60, "test": 20}.items(), 1):
        write_jsonl(folder / "data" / f"{part}.jsonl", learnable_rows(kind, count, seed))
    settings = TrainSettings(
        task="tone",
        data=folder / "data",
        settings=RunSettings(method=method, changes=changes),
        note=note,
    )
    with Registry.open(folder / "registry") as registry:
        train(settings, registry=registry, backbone=load_backbone(backbone))
    return folder


@pytest.fixture(scope="module", name="topk")
def train_topk(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    folder = tmp_path_factory.mktemp("topk")
    return trained(folder, backbone, TaskKind.SINGLE_LABEL, TopK(num_layers=1))


@pytest.fixture(name="copied")
def copy_topk(topk: Path, tmp_path: Path) -> Path:
    """A folder with a version that owns one layer, and with its data."""
    return shutil.copytree(topk, tmp_path / "copied")


def convert(folder: Path, source: str, *options: str, task: str = "tone") -> Ran:
    data = folder / "data" / "dev.jsonl"
    registry = ("--registry", str(folder / "registry"))
    return nunatak(
        "task", "convert", task, "--backbone", source, "--data", str(data), *registry, *options
    )


@pytest.fixture
def tokens(tmp_path: Path, backbone: Path) -> Path:
    return trained(tmp_path, backbone, TaskKind.TOKEN_CLASSIFICATION, LORA)


@pytest.mark.parametrize("owns_layers", [True, False], ids=["own layers", "updates of tokens"])
def test_a_converted_version_has_the_scores_that_it_serves(
    backbone: Path, request: pytest.FixtureRequest, *, owns_layers: bool
) -> None:
    folder: Path = request.getfixturevalue("copied" if owns_layers else "tokens")
    source = f"{backbone}+int8"

    ran = convert(folder, source, "--tolerance", "20", "--json")

    assert ran.exit_code == 0, ran.stderr
    said = ran.json()
    data = str(folder / "data" / "dev.jsonl")
    here = ("--registry", str(folder / "registry"), "--backbone", source)
    scored = nunatak("evaluate", "tone/2", "--data", data, "--json", *here).json()
    with Registry.open(folder / "registry") as registry:
        first, second = (registry.resolve(f"tone/{it}") for it in (1, 2))
    assert (said["reference"], said["converted_from"]) == ("tone/2", "tone/1")
    assert said["before"] == pytest.approx(first.metrics[0].value, abs=1e-6)
    recorded = {it.name: it.value for it in second.metrics}
    assert recorded == pytest.approx(scored["metrics"], abs=1e-6)
    assert said["after"] == recorded[first.metrics[0].name]
    assert second.note.startswith("the first one\nConverted from tone/1 on backbone, which scores ")
    assert second.backbone.name == "backbone+int8"
    assert (second.data, second.recipe) == (first.data, first.recipe)
    sizes = [it.blobs[0].size_bytes for it in (first, second)]
    assert (sizes[1] < 0.5 * sizes[0]) == owns_layers


def test_a_conversion_refuses_bad_rows_or_leaves_them_out(
    copied: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied)
    rows = toy_rows(TaskKind.SINGLE_LABEL, 60, seed=2)
    strange: list[dict[str, JsonValue]] = [{"text": "x", "label": "strange"}, {"text": "y"}]
    write_jsonl(copied / "data" / "dev.jsonl", [*rows, *strange])

    refused = convert(copied, f"{backbone}+int8", "--tolerance", "20")
    ran = convert(copied, f"{backbone}+int8", "--tolerance", "20", "--on-bad-row", "skip")

    assert "2 of 62 rows cannot be used" in refused.stderr
    assert ran.exit_code == 0, ran.stderr
    assert "left out 2 rows; the reasons are in dev.rejected.jsonl" in ran.stderr


def test_a_version_that_loses_its_score_is_refused_with_both_scores(
    copied: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = nunatak_versions.draft_quantized

    def spoiled(manifest: TaskManifest, data: bytes, backbone: Backbone) -> VersionDraft:
        tensors = tensors_from_bytes(data)
        name = "head.output.weight"
        return right(manifest, tensors_to_bytes({**tensors, name: -tensors[name]}), backbone)

    monkeypatch.setattr(nunatak_versions, "draft_quantized", spoiled)

    ran = convert(copied, f"{backbone}+int8", "--quiet")

    told = "points are lost, and 0.5 are allowed"
    ran.assert_refused("score_lost", ": tone/1 scores ", told)
    with Registry.open(copied / "registry") as registry:
        assert [it.version for it in registry.versions("tone")] == [1]


def test_examples_that_can_show_no_loss_convert_nothing(copied: Path, backbone: Path) -> None:
    rows = toy_rows(TaskKind.SINGLE_LABEL, 160, seed=2)
    cases = {"at least 50 examples": rows[:1], "all examples have the same label": rows[::2]}
    for problem, some in cases.items():
        write_jsonl(copied / "data" / "dev.jsonl", some)

        ran = convert(copied, f"{backbone}+int8", "--quiet")

        ran.assert_refused("too_few_examples", problem)


def test_a_second_conversion_says_that_nothing_is_new(copied: Path, backbone: Path) -> None:
    source = f"{backbone}+int8"
    first = convert(copied, source, "--tolerance", "100")

    by_name = convert(copied, source, "--tolerance", "100")
    by_number = convert(copied, source, "--tolerance", "100", task="tone/1")

    assert first.stdout.startswith("published tone/2 on backbone+int8: ")
    assert by_name.stderr.startswith(
        "error [invalid_option]: tone/2 is on backbone+int8 already; name a version on backbone"
    )
    assert by_number.stdout.startswith("nothing new: the registry has tone/2 on backbone+int8: ")


def test_a_conversion_keeps_what_it_was_scored_with_and_drops_what_it_was_not(
    tmp_path: Path, backbone: Path
) -> None:
    note = "x" * 4090 + "the end"
    changes = {**QUICK, "epochs": 1, "calibrate": True, "thresholds": "f1"}
    folder = trained(
        tmp_path, backbone, TaskKind.MULTI_LABEL, LORA, changes=changes, note=note[-4096:]
    )

    ran = convert(folder, f"{backbone}+int8", "--tolerance", "100")

    assert ran.exit_code == 0, ran.stderr
    with Registry.open(folder / "registry") as registry:
        first, second = (registry.resolve(f"tone/{it}") for it in (1, 2))
        floats, integers = (tensors_from_bytes(registry.read_blob(it)) for it in (first, second))
    # Thresholds, and the temperature in the head's weights, gave the answers that were scored.
    assert first.head.thresholds is not None
    assert second.head == first.head
    assert torch.equal(floats["head.output.weight"], integers["head.output.weight"])
    assert first.calibration is not None
    assert first.test_metrics
    assert second.calibration is None
    assert second.confusion is None
    assert second.test_metrics == ()
    assert second.note.startswith("xxx")
    assert "the end" not in second.note
    assert second.note.endswith("on the examples of the scores.")


@pytest.mark.parametrize(
    ("source", "code", "problem"),
    [
        ("minilm", "invalid_option", ": --backbone expects NAME+int8"),
        ("minilm+int8", "backbone_mismatch", ": tone/1 was trained on backbone"),
    ],
    ids=["plain", "another"],
)
def test_only_the_quantized_form_of_the_versions_backbone_is_taken(
    source: str, code: str, problem: str, copied: Path
) -> None:
    convert(copied, source, "--quiet").assert_refused(code, problem)
