"""A desk's dirty CSV becomes a task that is judged and scores, by four commands."""

import csv
import json
from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.examples import toy_rows
from doubles.terminals import Ran, nunatak
from nunatak_training.kinds import TaskKind

COLUMNS = ("--text-column", "Body", "--label-column", "Queue")
SKIP = ("--on-bad-row", "skip")
QUICK = ("--epochs", "2", "--max-length", "32", "--set", "batch_size=8", "--set", "min_steps=0")


def write_desk(path: Path) -> str:
    """Write rows with the faults of the export of a desk; return a label with a typo."""
    rows = toy_rows(TaskKind.SINGLE_LABEL, 80, seed=1)
    labels = sorted({str(row["label"]) for row in rows})
    typo = f"{labels[0]}x"
    lines = [f"{at};{row['text']};{row['label']}" for at, row in enumerate(rows)]
    for at in [at for at, row in enumerate(rows) if row["label"] == labels[1]][:4]:
        lines[at] += " "
    lines[5:5] = [";;", "a;;" + labels[0], "b;no queue;", "broken", f"c;{rows[0]['text']} b;{typo}"]
    content = "\r\n".join(["Id;Body;Queue", *lines, ""])
    path.write_text(content, encoding="utf-8-sig", newline="")
    return typo


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
        "doubts",
        "--data",
        "desk.csv",
        *COLUMNS,
        *SKIP,
        "--out",
        "doubts.csv",
        "--max-length",
        "32",
        *here[2:],
    )
    trained = run(
        *("train", "--task", "queue", "--data", "desk.csv", *COLUMNS, *SKIP, *QUICK, *here),
        *("--create", "--json", "--no-cache", "--no-resume"),
    )
    told = [json.loads(it)["row"] for it in Path("desk.rejected.jsonl").read_text().splitlines()]
    judged = run("evaluate", "queue", "--data", "desk.csv", *COLUMNS, *SKIP, "--json", *here)
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
    assert (judged.json()["num_examples"], judged.json()["trained"]) == (80, True)
    assert scored.json()["rejected"] == 2
    assert Path("scored.csv").read_bytes().startswith("\ufeffId;Body;Queue;queue;".encode())
