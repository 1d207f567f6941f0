"""Laws of `nunatak.train` and `nunatak.doubts`: as the command, with values of Python."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import nunatak
from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.policies import make_policy, make_rule, when
from doubles.terminals import nunatak as run_command
from nunatak_registry import Registry
from nunatak_training.data import DataProblem

EXAMPLES = tuple({it.text: it for it in toy_examples(60, seed=1)}.values())[:48]
TEXTS = [it.text for it in EXAMPLES]
LABELS = [str(it.label) for it in EXAMPLES]


@pytest.fixture(name="places", scope="module")
def make_places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a registry with the version `tone/1` of the command, and its backbone."""
    folder = tmp_path_factory.mktemp("places")
    backbone = save_tiny_backbone(folder / "backbone")
    data = write_jsonl(folder / "tone.jsonl", rows_of(EXAMPLES))
    ran = run_command(
        "train", "--task", "tone", "--data", str(data), "--backbone", str(backbone),
        "--method", "head", "--epochs", "2", "--max-length", "32",
        "--registry", str(folder / "registry"), "--create",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    return folder / "registry", backbone


def options(places: tuple[Path, Path], **changes: object) -> dict[str, Any]:
    registry, backbone = places
    return {
        "registry": registry, "backbone": backbone, "method": "head", "epochs": 2,
        "max_length": 32, "show_progress": False, **changes,
    }  # fmt: skip


def trained(
    places: tuple[Path, Path], *data: object, task: str = "tone", **changes: object
) -> nunatak.Trained:
    return nunatak.train(task, *data, **options(places, **changes))  # pyrefly: ignore[bad-argument-type]


def test_texts_with_labels_train_the_same_weights_as_the_command(places: tuple[Path, Path]) -> None:
    with trained(places, TEXTS, LABELS) as mine, Registry.open(places[0]) as registry:
        command = registry.resolve("tone/1")

        assert mine.reference != "tone/1"  # the name of the data differs
        assert mine.manifest.blobs == command.blobs
        assert mine.manifest.recipe == command.recipe
        assert list(mine.scores) == ["accuracy"]
        assert mine.test_scores is None


def test_a_process_forked_after_work_on_several_threads_imports_and_trains(
    places: tuple[Path, Path],
) -> None:
    given = {
        it: str(value) if isinstance(value, Path) else value
        for it, value in options(places).items()
    }
    code = (
        "import os, signal, sys, torch\n"
        "torch.set_num_threads(2)\ntorch.ones(1000, 1000) @ torch.ones(1000, 1000)\n"
        "if not (child := os.fork()):\n"
        "    signal.alarm(60)\n"
        "    import nunatak_server.local, nunatak_training.train, nunatak\n"
        f"    nunatak.train('f', {TEXTS}, {LABELS}, **{given | {'method': 'topk', 'layers': 1}})\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_a_process_forked_after_work_on_several_threads_trains(places: tuple[Path, Path]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            trained(places, TEXTS, LABELS, task="forked", method="topk", layers=1)
            os._exit(0)
        finally:
            os._exit(1)

    torch.set_num_threads(threads)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_trained_task_predicts_at_once_and_after_a_load(places: tuple[Path, Path]) -> None:
    registry, backbone = places
    columns = ((TEXTS[part], LABELS[part]) for part in (slice(16, None), slice(8), slice(8, 16)))
    frames = [pd.DataFrame({"body": texts, "queue": labels}) for texts, labels in columns]
    parts = dict(zip(("train", "dev", "test"), frames, strict=True))

    with trained(
        places, parts, task="route", text_column="body", label_column="queue", promote="prod",
        epochs=20,
    ) as mine:  # fmt: skip
        one, many = mine.predict(TEXTS[0]), mine.predict(TEXTS, top_k=1)
        assert mine.test_scores is not None
    with nunatak.load(registry, backbone=backbone) as tasks:
        loaded = tasks.predict("route@prod", TEXTS)

    assert (one.task, one.version) == ("route", 1)
    assert one.best.label == many.labels[0]
    assert len(many.predicted) == len(TEXTS)
    assert many.labels == loaded.labels
    assert sum(map(str.__eq__, loaded.labels, LABELS)) > len(TEXTS) * 0.8


def test_settings_are_those_of_the_recipe_and_unknown_ones_are_refused(
    places: tuple[Path, Path],
) -> None:
    with trained(
        places, TEXTS, LABELS, task="set", method="lora", rank=2, regularizer={"name": "mixout"}
    ) as mine:
        recipe = mine.manifest.recipe
        assert recipe is not None
        assert json.loads(json.dumps(recipe.settings["method"]))["rank"] == 2
    with pytest.raises(nunatak.NunatakError, match="no setting 'epoch'; the nearest is 'epochs'"):
        trained(places, TEXTS, LABELS, epoch=3)
    with pytest.raises(nunatak.NunatakError, match="rank belongs to method lora, not to head"):
        trained(places, TEXTS, LABELS, rank=3)
    with pytest.raises(nunatak.NunatakError, match="kind must be one of single-label"):
        trained(places, TEXTS, LABELS, kind="poem")


@pytest.mark.parametrize(
    "data", [({*TEXTS}, LABELS), (TEXTS, dict(zip(TEXTS, LABELS, strict=True)))]
)
def test_texts_and_labels_that_no_order_pairs_are_refused(
    places: tuple[Path, Path], data: tuple[object, object]
) -> None:
    with pytest.raises(nunatak.NunatakError, match="expected a list of items"):
        trained(places, *data)


def test_series_of_two_indexes_are_refused(places: tuple[Path, Path]) -> None:
    texts, labels = pd.Series(TEXTS), pd.Series(LABELS)

    assert trained(places, texts, labels).manifest == trained(places, TEXTS, LABELS).manifest
    with pytest.raises(nunatak.NunatakError, match="give both one index, or lists"):
        trained(places, texts, labels[::-1])


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_labels_in_arrays_are_those_in_lists(
    places: tuple[Path, Path], array: Callable[[object], Iterable[object]]
) -> None:
    one = trained(places, TEXTS, array([it % 2 for it in range(len(TEXTS))]))
    several = trained(places, TEXTS, array([[3, 4 + it % 3] for it in range(len(TEXTS))]), task="b")

    assert one.manifest.head.labels == ("0", "1")
    assert several.manifest.head.labels == ("3", "4", "5", "6")


def test_the_kind_says_how_labels_are_read(places: tuple[Path, Path]) -> None:
    lists = [[it] for it in LABELS]
    one, same = (trained(places, TEXTS, it, kind="multi-label").manifest for it in (LABELS, lists))

    assert one == same
    with pytest.raises(nunatak.NunatakError, match="'label' must be"):
        trained(places, TEXTS, lists, kind="single-label")


def test_suspicious_data_warns_or_is_refused(places: tuple[Path, Path]) -> None:
    texts, labels = [*TEXTS, TEXTS[0]], [*LABELS, LABELS[1]]

    with pytest.warns(UserWarning, match="different labels for one text"):
        trained(places, texts, labels, task="odd")
    with pytest.raises(nunatak.NunatakError, match="different labels for one text"):
        trained(places, texts, labels, task="odd", strict=True)
    assert "--" not in "".join(it.advice for it in DataProblem)


def test_a_promotion_warns_of_a_policy_that_it_leaves_undecided(places: tuple[Path, Path]) -> None:
    trained(places, TEXTS, LABELS, task="asked", promote="prod")
    with Registry.open(places[0]) as registry:
        registry.policies.put(make_policy(make_rule(when("asked", LABELS[0]))))

    with pytest.warns(UserWarning, match="there is no label"):
        trained(places, TEXTS, [f"new-{it}" for it in LABELS], task="asked", promote="prod")


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"text": it, "label": float(len(it) % 2)} for it in TEXTS], {}),
        ([{"text": it, "label": ""} for it in TEXTS], {}),
        ([{"text": it} for it in TEXTS], {}),
        ([{"text": it, "label": it[0]} for it in TEXTS], {"pair_column": "text"}),
        ([{"text": it, "label": it[0]} for it in TEXTS], {"kind": "ranking", "text_column": "a"}),
    ],
    ids=["whole-numbers", "bad-rows", "no-column", "one-column-twice", "other-columns"],
)
def test_errors_name_arguments_and_no_options_of_the_command(
    places: tuple[Path, Path], rows: list[dict[str, object]], named: dict[str, str]
) -> None:
    with pytest.raises(nunatak.NunatakError, match=r"kind|rejected=|_column") as caught:
        trained(places, rows, **named)

    assert "--" not in str(caught.value)


def test_doubts_are_those_of_the_command(places: tuple[Path, Path], tmp_path: Path) -> None:
    labels = [LABELS[1], *LABELS[1:]]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    data = write_jsonl(tmp_path / "tone.jsonl", rows)

    found = nunatak.doubts(TEXTS, labels, backbone=places[1], max_length=32)
    ran = run_command(
        "doubts", "--data", str(data), "--backbone", str(places[1]), "--max-length", "32",
        "--json", "--out", str(tmp_path / "doubts.csv"),
    )  # fmt: skip

    assert found[0].text == TEXTS[0]
    said = json.loads(ran.stdout)["doubts"]
    assert [it["text"] for it in said] == [it.text for it in found]
    assert said[0]["place"] == "tone.jsonl:1"
    written = list(csv.DictReader((tmp_path / "doubts.csv").read_text().splitlines()))
    assert [it["likely_label"] for it in written] == [it.likely_label for it in found]


def test_a_task_or_probabilities_teach_a_task(places: tuple[Path, Path]) -> None:
    common = options(places)
    rows = [{"text": it, "probabilities": {"a": 0.25, "b": 0.75}} for it in TEXTS[::2]]
    rows += [{"text": it, "probabilities": {"a": 0.75, "b": 0.25}} for it in TEXTS[1::2]]

    with nunatak.adopt("pupil", TEXTS, teacher="tone/1", **common) as mine:
        assert mine.predict(TEXTS[0]).best.label in LABELS
        assert mine.manifest.teacher is not None
        assert mine.manifest.teacher.name == "tone/1"
    for texts in (tuple(TEXTS), pd.Series(TEXTS), {"train": TEXTS}):
        with nunatak.adopt("pupil", texts, teacher="tone/1", **common) as same:
            assert same.reference == mine.reference
    with nunatak.adopt("reader", rows, **common) as mine:
        assert mine.manifest.head.labels == ("a", "b")
    with pytest.raises(nunatak.NunatakError, match="a yes/no question needs instructions"):
        nunatak.adopt("x", TEXTS, upstream="http://x", question={"type": "noul"}, **common)
    with pytest.raises(nunatak.NunatakError, match="expected a task as the teacher"):
        nunatak.adopt("x", TEXTS, teacher="tone/1", upstream="http://x", **common)
