from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, rows_of, toy_data, toy_examples, write_jsonl
from doubles.killed import Killed, Mortal
from nunatak_artifact.errors import FolderInUseError, UnsupportedExportError
from nunatak_model import Backbone, Full, Pooling, TopK, load_backbone, run_trunk
from nunatak_training import SilentReport, UnknownLabelError, default_recipe, fit_task
from nunatak_training.multitask import (
    MultitaskOutcome,
    MultitaskSettings,
    SharedTask,
    train_backbone,
)

MODELS: Any = AutoModel


def settings_in(folder: Path) -> MultitaskSettings:
    tasks = {
        name: SharedTask(data=write_jsonl(folder / f"{name}.jsonl", rows_of(toy_examples(40))))
        for name in ("first", "second")
    }
    changes = {"epochs": 1, "batch_size": 8, "max_length": 32}
    recipe = default_recipe(Full(), changes=changes)
    return MultitaskSettings(tasks=tasks, recipe=recipe, output=folder / "shared-base")


@pytest.fixture(name="base", scope="module")
def make_base() -> Backbone:
    return tiny_backbone(num_layers=2, pooling=Pooling.MEAN)


@pytest.fixture(name="outcome", scope="module")
def train(base: Backbone, tmp_path_factory: pytest.TempPathFactory) -> MultitaskOutcome:
    return train_backbone(settings_in(tmp_path_factory.mktemp("multitask")), base)


def test_what_is_written_loads_as_a_backbone_of_its_own(
    outcome: MultitaskOutcome, base: Backbone
) -> None:
    loaded = load_backbone(outcome.folder)

    assert loaded.name == "shared-base"
    assert loaded.digest == outcome.digest != base.digest
    assert loaded.config == base.config
    assert loaded.pooling is base.pooling
    assert loaded.tokenizer.digest == base.tokenizer.digest
    assert all(
        torch.equal(loaded.parameters[name], tensor)
        for name, tensor in outcome.fitted.parameters.items()
    )
    assert loaded.pooler is not None
    assert base.pooler is not None
    assert torch.equal(loaded.pooler.weight, base.pooler.weight)


def test_transformers_loads_it_and_computes_the_same(outcome: MultitaskOutcome) -> None:
    loaded = load_backbone(outcome.folder)
    (encoding,) = loaded.tokenizer.encode(["a new base"], max_length=32)
    theirs = MODELS.from_pretrained(outcome.folder).eval()
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor([encoding.token_ids]),
            token_type_ids=torch.tensor([encoding.type_ids]),
        ).last_hidden_state[0]

    found = run_trunk(loaded, [encoding], depth=loaded.config.num_layers).hidden[encoding]

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_tasks_are_trained_on_it_as_on_any_backbone(outcome: MultitaskOutcome) -> None:
    loaded = load_backbone(outcome.folder)
    recipe = default_recipe(TopK(num_layers=1), changes={"epochs": 1, "max_length": 32})

    trained = fit_task(toy_data(), recipe, loaded, report=SilentReport())

    assert trained.spec.split_depth(loaded.config) == 1


def test_a_killed_run_writes_nothing_and_its_next_start_ends_as_if_it_had_not_been(
    outcome: MultitaskOutcome, base: Backbone, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(Killed):
        train_backbone(settings_in(tmp_path), base, report=Mortal(dies_at=3), checkpoints=cache)
    assert not (tmp_path / "shared-base").exists()

    again = train_backbone(settings_in(tmp_path), base, checkpoints=cache)

    assert again.digest == outcome.digest
    assert not list(cache.rglob("*.safetensors"))


def test_folder_that_holds_something_is_refused_before_training_and_stays_as_it_is(
    base: Backbone, tmp_path: Path
) -> None:
    settings, report = settings_in(tmp_path), RecordingReport()
    settings.output.mkdir()
    (settings.output / "kept.txt").write_text("kept")

    with pytest.raises(FolderInUseError):
        train_backbone(settings, base, report=report)

    assert report.num_steps == 0
    assert [path.name for path in settings.output.iterdir()] == ["kept.txt"]


def test_bad_data_of_one_task_writes_nothing(base: Backbone, tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for name, label in (("train", "early"), ("dev", "never")):
        (tmp_path / "bad").mkdir(exist_ok=True)
        rows = [{"text": "a b", "label": label}, {"text": "y z", "label": "late"}] * 4
        write_jsonl(tmp_path / "bad" / f"{name}.jsonl", rows)
    tasks = {**settings.tasks, "bad": SharedTask(data=tmp_path / "bad")}
    broken = MultitaskSettings(tasks=tasks, recipe=settings.recipe, output=settings.output)

    with pytest.raises(UnknownLabelError):
        train_backbone(broken, base)

    assert not settings.output.exists()


def test_architecture_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedExportError, match="modernbert"):
        train_backbone(settings_in(tmp_path), tiny_backbone(num_layers=2, family="modernbert"))
