"""`nunatak evaluate`: the scores of training, from a version in this process or on a server."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from doubles.backbones import save_tiny_backbone
from doubles.examples import SHORT_TRAINING, toy_rows, write_jsonl
from doubles.serving import make_settings, running_server
from doubles.terminals import Ran, nunatak
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, load_backbone, tensors_from_bytes
from nunatak_registry import Registry
from nunatak_training.kinds import TaskKind
from nunatak_training.run_settings import RunSettings
from nunatak_training.train import TrainSettings, train
from nunatak_versions import Provenance, draft_task

QUICK: dict[str, JsonValue] = {**SHORT_TRAINING, "epochs": 2}
NAMED = {TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL}
BY_F1 = RunSettings(
    method=TopK(num_layers=1), changes={**QUICK, "metric": "f1", "positive_label": "late"}
)
NUM_DEV = 24
"""More than one request holds."""
COLUMNS = ("--text-column", "Body", "--label-column", "Queue")
SKIP = ("--on-bad-row", "skip")
QUICK_OPTIONS = (
    *("--seed", "7", "--epochs", "2", "--max-length", "32"),
    *("--set", "batch_size=8", "--set", "min_steps=0"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone, dev examples of every kind of task, and a registry with a task of every kind."""
    folder = tmp_path_factory.mktemp("evaluated")
    backbone = load_backbone(save_tiny_backbone(folder / "backbone"))
    chosen = RunSettings(method=TopK(num_layers=1), changes=QUICK)
    with Registry.open(folder / "registry") as registry:
        for kind in TaskKind:
            (folder / kind).mkdir()
            write_jsonl(folder / kind / "train.jsonl", toy_rows(kind, 32, seed=1))
            write_jsonl(folder / kind / "dev.jsonl", toy_rows(kind, NUM_DEV, seed=2))
            settings = TrainSettings(
                task=kind, data=folder / kind, settings=BY_F1 if kind in NAMED else chosen
            )
            train(settings, registry=registry, backbone=backbone)
    return folder


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return load_backbone(folder / "backbone")


@pytest.fixture(scope="module")
def address(folder: Path, backbone: Backbone) -> Iterator[str]:
    with (
        Registry.open(folder / "registry") as registry,
        running_server(backbone, registry, make_settings(max_inputs=NUM_DEV - 4)) as url,
    ):
        yield url


def evaluated(folder: Path, kind: TaskKind, *options: str) -> dict[str, JsonValue]:
    data = folder / kind / "dev.jsonl"
    ran = nunatak("evaluate", kind, "--data", str(data), "--json", *options)
    assert ran.exit_code == 0, ran.stderr
    return ran.json()


def here(folder: Path) -> tuple[str, ...]:
    return "--registry", str(folder / "registry"), "--backbone", str(folder / "backbone")


def write_desk(path: Path, *, seed: int = 1) -> str:
    """Write rows with the faults of the export of a desk; return a label with a typo."""
    rows = toy_rows(TaskKind.SINGLE_LABEL, 80, seed=seed)
    labels = sorted({str(row["label"]) for row in rows})
    typo = f"{labels[0]}x"
    lines = [f"{at};{row['text']};{row['label']}" for at, row in enumerate(rows)]
    for at in [at for at, row in enumerate(rows) if row["label"] == labels[1]][:4]:
        lines[at] += " "
    lines[5:5] = [";;", "a;;" + labels[0], "b;no queue;", "broken", f"c;{rows[0]['text']} b;{typo}"]
    content = "\r\n".join(["Id;Body;Queue", *lines, ""])
    path.write_text(content, encoding="utf-8-sig", newline="")
    return typo


def test_a_ranking_is_scored_by_its_logits_whose_scores_round_to_one(
    folder: Path, backbone: Backbone
) -> None:
    with Registry.open(folder / "registry") as registry:
        usual = registry.resolve(TaskKind.RANKING)
        tensors = tensors_from_bytes(registry.read_blob(usual))
        output = {
            name: 2.0**30 * it for name, it in tensors.items() if name.startswith("head.output.")
        }
        loud = draft_task(
            "loud",
            method=usual.method,
            head=usual.head,
            parameters={**tensors, **output},
            backbone=backbone,
            max_length=usual.max_length,
            probe_inputs=usual.probe.inputs,
            provenance=Provenance(created_at=usual.created_at),
        )
        registry.publish(loud.manifest, loud.blobs)
    data = str(folder / TaskKind.RANKING / "dev.jsonl")

    found = [
        nunatak("evaluate", it, "--data", data, "--json", *here(folder)).json()["metrics"]
        for it in (TaskKind.RANKING, "loud")
    ]

    assert found[0] == found[1]


@pytest.mark.parametrize("kind", TaskKind)
def test_a_version_has_the_scores_that_training_recorded_wherever_it_is_asked(
    kind: TaskKind, folder: Path, address: str
) -> None:
    with Registry.open(folder / "registry") as registry:
        recorded = {it.name: it.value for it in registry.resolve(kind).metrics}

    own = evaluated(folder, kind, *here(folder))
    served = evaluated(folder, kind, "--server", address)

    metrics = own["metrics"]
    assert isinstance(metrics, dict)
    assert {name: metrics[name] for name in recorded} == pytest.approx(recorded, abs=1e-6)
    assert served["metrics"] == pytest.approx(metrics, abs=1e-6)
    assert (own["reference"], served["num_wrong"]) == (f"{kind}/1", own["num_wrong"])
    assert (own["num_wrong"] is None) == (kind is TaskKind.REGRESSION)
    assert not own["trained"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_wrong_texts_are_written_with_their_place_and_scores(
    suffix: str, folder: Path, tmp_path: Path
) -> None:
    kind = TaskKind.SINGLE_LABEL
    found = evaluated(folder, kind, *here(folder), "--wrong", str(tmp_path / f"wrong.{suffix}"))
    lines = (folder / kind / "dev.jsonl").read_text().splitlines()
    examples: dict[str, Any] = {
        f"dev.jsonl:{at}": json.loads(line) for at, line in enumerate(lines, start=1)
    }

    with (tmp_path / f"wrong.{suffix}").open(newline="") as file:
        rows: list[Any] = [*csv.DictReader(file)] if suffix == "csv" else [*map(json.loads, file)]

    assert len(rows) == found["num_wrong"]
    for row in rows:
        scores: Any = json.loads(row["scores"]) if suffix == "csv" else row["scores"]
        assert row["text"] == examples[row["place"]]["text"]
        assert row["expected"] == examples[row["place"]]["label"] != row["predicted"]
        assert max(scores, key=lambda label: scores[label]) == row["predicted"]


@pytest.mark.parametrize(("part", "trained"), [("train", True), ("dev", False)])
def test_people_see_metrics_labels_confusion_calibration_and_what_trained_the_version(
    part: str, folder: Path, *, trained: bool
) -> None:
    kind = TaskKind.SINGLE_LABEL
    data = folder / kind / f"{part}.jsonl"

    shown = nunatak("evaluate", kind, "--data", str(data), *here(folder)).stdout

    count = len(data.read_text().splitlines())
    assert f"{kind}/1 on {part}.jsonl: {count} examples" in shown
    for name in ("accuracy", "expected_calibration_error", "precision", "true \\ predicted"):
        assert name in shown
    assert ("the version was trained on these examples" in shown) is trained


def test_examples_that_the_task_cannot_be_scored_on_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    kind = TaskKind.SINGLE_LABEL
    unknown = write_jsonl(tmp_path / "other.jsonl", [{"text": "x", "label": "unheard"}])
    values = write_jsonl(tmp_path / "values.jsonl", [{"text": "x"}])

    refused = nunatak("evaluate", kind, "--data", str(unknown), *here(folder))
    unlabelled = nunatak("evaluate", kind, "--data", str(values), *here(folder))
    misplaced = nunatak(
        *("evaluate", kind, "--data", str(unknown), "--wrong", "wrong.txt"), *here(folder)
    )

    assert refused.stderr.startswith("error [unknown_label]: other.jsonl:1")
    assert unlabelled.stderr.startswith("error [missing_column]: values.jsonl:1")
    assert misplaced.stderr.startswith("error [invalid_option]: --wrong expects")


def test_a_version_that_cannot_answer_is_no_fault_of_an_example(
    folder: Path, tmp_path: Path
) -> None:
    kind = TaskKind.SINGLE_LABEL
    other = str(save_tiny_backbone(tmp_path / "other", seed=9))
    data = str(folder / kind / "dev.jsonl")

    asked = ("--registry", str(folder / "registry"), "--backbone", other)
    refused = nunatak("evaluate", kind, "--data", data, *asked, "--quiet")

    refused.assert_refused("backbone_mismatch", ": single-label/1 was trained on")


def test_a_file_of_a_desk_is_scored_with_its_columns_and_its_dialect(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = toy_rows(TaskKind.SINGLE_LABEL, NUM_DEV, seed=2)
    lines = [f"{at};{row['text']};{row['label']}" for at, row in enumerate(rows)]
    (tmp_path / "desk.csv").write_text(
        "\n".join(["Id;Body;Queue", *lines, "=1;x;unheard", ";;", "y;;z"]), encoding="utf-8-sig"
    )
    asked = ("evaluate", TaskKind.SINGLE_LABEL, "--data", "desk.csv", *COLUMNS, "--json")

    refused = nunatak(*asked, *here(folder))
    ran = nunatak(*asked, *SKIP, "--wrong", "wrong.csv", *here(folder))

    assert refused.stderr.startswith(
        f"error [invalid_row]: desk.csv: 2 of {NUM_DEV + 2} rows cannot be used."
    )
    assert "left out 2 rows; the reasons are in desk.rejected.jsonl" in ran.stderr
    plain = evaluated(folder, TaskKind.SINGLE_LABEL, *here(folder))
    assert ran.json()["metrics"] == plain["metrics"]
    labels = [row["label"] for row in rows]
    share = max(map(labels.count, labels)) / len(labels)
    assert plain["majority"] == {"label": max(labels, key=labels.count), "share": share}
    with (tmp_path / "wrong.csv").open(encoding="utf-8-sig", newline="") as file:
        assert file.read(1) == "I"  # after the mark
        file.seek(0)
        wrong = [*csv.DictReader(file, delimiter=";")]
    assert wrong
    assert len(wrong) == plain["num_wrong"]
    assert all(rows[int(row["Id"])]["text"] == row["text"] for row in wrong)


def test_a_dirty_csv_is_doubted_trained_judged_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typo = write_desk(tmp_path / "desk.csv")
    here = ("--registry", "registry", "--backbone", str(save_tiny_backbone(tmp_path / "backbone")))

    def run(*arguments: str) -> Ran:
        ran = nunatak(*arguments)
        assert ran.exit_code in {0, 3}, ran.stderr
        return ran

    run(
        *("doubts", "--data", "desk.csv", *COLUMNS, *SKIP, "--out", "doubts.csv"),
        *("--max-length", "32", *here[2:]),
    )
    trained = run(
        *("train", "--task", "queue", "--data", "desk.csv", *COLUMNS, *SKIP, *QUICK_OPTIONS, *here),
        *("--create", "--json", "--no-cache", "--no-resume"),
    )
    told = [json.loads(it)["row"] for it in Path("desk.rejected.jsonl").read_text().splitlines()]
    Path("other").mkdir()
    other = Path("desk.csv").rename("other/all.csv")
    write_desk(Path("desk.csv"), seed=2)
    moved, strange = (
        run("evaluate", "queue", "--data", str(it), *COLUMNS, *SKIP, "--json", *here).json()
        for it in (other, "desk.csv")
    )
    scored = run(
        *("predict-file", "desk.csv", "scored.csv", "--task", "queue", "--text-column", "Body"),
        *("--json", *here),
    )

    with Path("doubts.csv").open(encoding="utf-8-sig", newline="") as file:
        first = next(csv.DictReader(file, delimiter=";"))
    assert (first["label"], first["Id"]) == (typo, "c")
    assert "labels that look alike" in trained.stderr
    assert sorted(told) == [8, 9, 10, 11]
    assert trained.json()["majority"] is not None
    assert (moved["num_examples"], moved["trained"]) == (80, True)
    assert (strange["num_examples"], strange["trained"]) == (80, False)
    assert scored.json()["rejected"] == 2
    assert Path("scored.csv").read_bytes().startswith("\ufeffId;Body;Queue;queue;".encode())
