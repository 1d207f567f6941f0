"""`nunatak task convert`: a version moves to the integers of its backbone, if its score stays."""

from pathlib import Path

import pytest
from pydantic import JsonValue

import nunatak_versions
from doubles.backbones import save_tiny_backbone
from doubles.examples import toy_rows, write_jsonl
from doubles.terminals import Ran, nunatak
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_model import Backbone, load_backbone, tensors_from_bytes, tensors_to_bytes
from nunatak_registry import Registry
from nunatak_training.kinds import TaskKind
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainSettings, train
from nunatak_versions import VersionDraft

QUICK: dict[str, JsonValue] = {
    "epochs": 4,
    "min_steps": 0,
    "batch_size": 8,
    "max_length": 32,
    "learning_rate": 5e-3,
    "head_learning_rate": 2e-2,
}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_backbone(tmp_path_factory.mktemp("convert") / "backbone")


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> Path:
    return tmp_path


def trained(folder: Path, backbone: Path, kind: TaskKind, method: Method) -> None:
    (folder / "data").mkdir()
    write_jsonl(folder / "data" / "train.jsonl", toy_rows(kind, 48, seed=1))
    write_jsonl(folder / "data" / "dev.jsonl", toy_rows(kind, 40, seed=2))
    settings = TrainSettings(
        task="tone",
        data=folder / "data",
        settings=RunSettings(method=method, changes=QUICK),
        note="the first one",
    )
    with Registry.open(folder / "registry") as registry:
        train(settings, registry=registry, backbone=load_backbone(backbone))


def convert(folder: Path, source: str, *options: str) -> Ran:
    data = folder / "data" / "dev.jsonl"
    registry = ("--registry", str(folder / "registry"))
    return nunatak(
        "task", "convert", "tone", "--backbone", source, "--data", str(data), *registry, *options
    )


@pytest.mark.parametrize("kind", [TaskKind.SINGLE_LABEL, TaskKind.TOKEN_CLASSIFICATION])
@pytest.mark.parametrize(
    "method",
    [TopK(num_layers=2), Lora(rank=4, alpha=16.0, targets=QUERY_AND_VALUE)],
    ids=lambda it: it.kind,
)
def test_a_converted_version_has_the_scores_that_it_serves(
    kind: TaskKind, method: Method, folder: Path, backbone: Path
) -> None:
    trained(folder, backbone, kind, method)
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
    assert (sizes[1] < 0.5 * sizes[0]) == isinstance(method, TopK)


def test_a_version_that_loses_its_score_is_refused_with_both_scores(
    folder: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(folder, backbone, TaskKind.SINGLE_LABEL, TopK(num_layers=2))
    right = nunatak_versions.draft_quantized

    def spoiled(manifest: TaskManifest, data: bytes, backbone: Backbone) -> VersionDraft:
        tensors = tensors_from_bytes(data)
        name = "head.output.weight"
        return right(manifest, tensors_to_bytes({**tensors, name: -tensors[name]}), backbone)

    monkeypatch.setattr(nunatak_versions, "draft_quantized", spoiled)

    ran = convert(folder, f"{backbone}+int8")

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [score_lost]: tone/1 scores ")
    assert "more than 0.5 points are lost" in " ".join(ran.stderr.split())
    with Registry.open(folder / "registry") as registry:
        assert [it.version for it in registry.versions("tone")] == [1]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("minilm", "error [invalid_option]: --backbone expects NAME+int8"),
        ("minilm+int8", "error [backbone_mismatch]: tone/1 was trained on backbone"),
    ],
    ids=["plain", "another"],
)
def test_only_the_quantized_form_of_the_versions_backbone_is_taken(
    source: str, problem: str, folder: Path, backbone: Path
) -> None:
    trained(folder, backbone, TaskKind.SINGLE_LABEL, TopK(num_layers=1))

    ran = convert(folder, source)

    assert ran.exit_code == 1
    assert ran.stderr.startswith(problem)
