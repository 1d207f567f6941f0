"""Laws of `nunatak task import|export|push|pull`."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForSequenceClassification

from doubles.backbones import tiny_backbone
from doubles.checkpoints import save_checkpoint
from doubles.published import TwinFactory
from doubles.tasks import publish_tiny_task
from doubles.terminals import nunatak
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, TopK
from nunatak_registry import Registry

# transformers and peft type these classes partly.
BERT: Any = BertForSequenceClassification


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone, a checkpoint tuned from it, and a registry with a LoRA task of it."""
    folder = tmp_path_factory.mktemp("exchange")
    factory = TwinFactory(folder / "backbone", family="bert")
    save_checkpoint(factory, folder / "tuned", method=TopK(num_layers=2))
    with Registry.open(folder / "registry") as registry:
        publish_tiny_task(
            registry,
            factory.backbone,
            task="tone",
            method=Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        )
    return folder


@pytest.fixture
def place(tmp_path: Path, base: Path) -> tuple[str, ...]:
    """A registry to publish to, and the backbone."""
    Registry.open(tmp_path / "mine").close()
    return ("--registry", str(tmp_path / "mine"), "--backbone", str(base / "backbone"))


@pytest.fixture
def stored(base: Path) -> tuple[str, ...]:
    """The registry that holds `tone/1`."""
    return ("--registry", str(base / "registry"))


def test_import_publishes_what_differs_and_says_what_was_found(
    base: Path, place: tuple[str, ...], tmp_path: Path
) -> None:
    ran = nunatak("task", "import", str(base / "tuned"), "--task", "mood", *place)

    assert ran.exit_code == 0
    assert "layers 2-3 differ: top-2 of 4; " in ran.stdout
    assert ran.stdout.endswith("published mood/1\ndefault label: none (a guard needs one)\n")
    with Registry.open(tmp_path / "mine") as registry:
        manifest = registry.resolve("mood")
    assert manifest.split_depth == 2
    assert manifest.note.startswith("imported from tuned: BertForSequenceClassification, ")


def test_import_again_finds_the_version_that_is_there(base: Path, place: tuple[str, ...]) -> None:
    words = ("task", "import", str(base / "tuned"), "--task", "mood", "--json", *place)

    first, second = (nunatak(*words).json() for _ in range(2))

    assert (first.pop("is_new"), second.pop("is_new")) == (True, False)
    assert first == second
    assert (first["reference"], first["method"], first["split_depth"]) == ("mood/1", "topk", 2)


def test_import_says_what_one_logit_is_for(place: tuple[str, ...], tmp_path: Path) -> None:
    factory = TwinFactory(tmp_path / "backbone", family="bert")
    save_checkpoint(factory, tmp_path / "one", num_labels=1)
    words = ("task", "import", str(tmp_path / "one"), *place[:2], "--head", "ranking")

    nunatak(*words, "--backbone", str(tmp_path / "backbone"), "--task", "rank")

    with Registry.open(tmp_path / "mine") as registry:
        assert registry.resolve("rank").head.kind is HeadKind.RANKING


def test_import_takes_an_adapter_of_another_base_only_on_request(
    place: tuple[str, ...], stored: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    nunatak("task", "export", "tone", str(folder), "--format", "peft", *stored, *place[2:])
    config = folder / "adapter_config.json"
    other = {**json.loads(config.read_text()), "base_model_name_or_path": "acme/other"}
    config.write_text(json.dumps(other))
    words = ("task", "import", str(folder), "--task", "tone", *place)

    refused, taken = nunatak(*words), nunatak(*words, "--allow-other-base")

    assert refused.exit_code == 1
    assert "it was trained on 'acme/other'" in refused.stderr
    assert taken.exit_code == 0
    with Registry.open(tmp_path / "mine") as registry:
        assert "trained on acme/other" in registry.resolve("tone").note


def test_every_option_of_an_import_is_part_of_the_version(
    base: Path, place: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("task", "import", str(base / "tuned"), "--task", "mood", *place)
    said = ("--problem-type", "multi_label_classification", "--labels", 'a, "b, too",c')
    more = ("--note", "from the archive", "--promote", "prod", "--reads", "pair")

    found = nunatak(
        *words, *said, *more, "--threshold", "a=0.2", "--threshold", "c=0.9", "--json"
    ).json()
    shown = nunatak("task", "show", "mood@prod", *place[:2]).stdout

    assert (found["labels"], found["reads"]) == (["a", "b, too", "c"], "pair")
    assert (found["thresholds"], found["alias"]) == ({"a": 0.2, "c": 0.9}, "prod")
    assert str(found["note"]).endswith("; from the archive")
    for expected in ("mood/1", "a 0.2, c 0.9; other labels 0.5", "pairs of texts"):
        assert expected in shown
    with Registry.open(tmp_path / "mine") as registry:
        assert registry.resolve("mood").head.problem_type is ProblemType.MULTI_LABEL


def test_thresholds_of_an_import_are_numbers_of_its_labels(
    base: Path, place: tuple[str, ...]
) -> None:
    words = ("task", "import", str(base / "tuned"), "--task", "mood", *place)
    several = ("--problem-type", "multi_label_classification", "--labels", "a,b,c")

    no_number = nunatak(*words, *several, "--threshold", "a=low")
    no_label = nunatak(*words, *several, "--threshold", "d=0.5")

    no_number.assert_refused("invalid_option", "--threshold expects a number")
    assert "a threshold must be of a label, got 'd'" in no_label.stderr


def test_export_to_transformers_is_loaded_by_it(
    base: Path, stored: tuple[str, ...], tmp_path: Path
) -> None:
    target, backbone = tmp_path / "out", ("--backbone", str(base / "backbone"))

    ran = nunatak("task", "export", "tone", str(target), *stored, *backbone)

    assert ran.stdout == f"wrote tone/1 to {target} (transformers)\n"
    model = BERT.from_pretrained(target)
    assert model.config.id2label == {0: "calm", 1: "urgent", 2: "other"}


def test_what_was_pushed_to_a_folder_is_pulled_from_it(
    stored: tuple[str, ...], place: tuple[str, ...], tmp_path: Path
) -> None:
    target = str(tmp_path / "pushed")

    pushed = nunatak("task", "push", "tone", target, *stored)
    pulled = nunatak("task", "pull", target, "--task", "mood", "--promote", "prod", *place)

    assert pushed.stdout == f"pushed tone/1 to {target}\n"
    assert pulled.exit_code == 0
    assert "published mood/1\n" in pulled.stdout
    assert pulled.stdout.endswith("\nmood@prod -> version 1 (new)\n")
    shown = nunatak("task", "show", "mood", "--json", *place[:2]).json()
    assert shown["manifest"]["note"] == "pulled from pushed, where it was tone/1"


def test_a_version_on_another_backbone_is_neither_exported_nor_pulled(
    tmp_path: Path, place: tuple[str, ...]
) -> None:
    pushed = str(tmp_path / "pushed")
    with Registry.open(tmp_path / "registry") as registry:
        publish_tiny_task(registry, tiny_backbone(seed=5), task="far", method=HeadOnly())
    far = ("--registry", str(tmp_path / "registry"))
    nunatak("task", "push", "far", pushed, *far)

    pulled = nunatak("task", "pull", pushed, *place)
    exported = nunatak("task", "export", "far", str(tmp_path / "out"), *far, *place[2:])

    for ran in (pulled, exported):
        ran.assert_refused("backbone_mismatch")
    assert not (tmp_path / "out").exists()
