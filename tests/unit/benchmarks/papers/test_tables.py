"""Laws of the papers' tables."""

from pathlib import Path
from statistics import mean

import pytest
from pydantic import JsonValue

from benchmarks.papers.elsa_table import elsa_table
from benchmarks.papers.graddrop_table import graddrop_cells, graddrop_markdown
from benchmarks.papers.render import inside_section, section
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_training.sweeps import RunRecord, cells_of
from nunatak_training.sweeps.tables import num_frozen

ELSA: JsonValue = [{"kind": "full"}, {"kind": "topk", "frozen": [1, 2, 3]}]
QUALITY = {None: (0.8, 0.6), 1: (0.7, 0.7), 2: (0.69, 0.65), 3: (0.3, 0.1)}
"""Scores of the seeds by frozen layers, on the task `toy`; half of that on `other`."""


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(name="elsa", scope="module")
def make_elsa(folder: Path) -> list[RunRecord]:
    tasks: JsonValue = [
        {"name": "toy"},
        {"name": "other", "data": "toy", "recipe": {"batch_size": 4}},
    ]
    runs = toy_runs(folder, tasks=tasks, methods=ELSA, seeds=[0, 1])
    return [
        record_of(
            run,
            QUALITY[num_frozen(run.description)][run.description.recipe.seed]
            / (1 if run.description.task == "toy" else 2),
        )
        for run in runs
    ]


def test_relative_performance_is_the_ratio_of_means_averaged_over_tasks(
    elsa: list[RunRecord],
) -> None:
    table = elsa_table(elsa)

    assert table.depths == [1, 2, 3]
    for frozen in table.depths:
        expected = mean(QUALITY[frozen]) / mean(QUALITY[None])
        assert table.relative("other", frozen) == pytest.approx(expected)
        assert table.average(frozen) == pytest.approx(expected)


def test_operating_point_is_the_most_frozen_layers_that_keep_the_target(
    elsa: list[RunRecord],
) -> None:
    # 0.7 / 0.7 and 0.67 / 0.7 are at least 95 %, 0.2 / 0.7 is not.
    assert elsa_table(elsa).operating_point() == 2
    assert elsa_table(elsa).operating_point(0.2) == 3
    assert elsa_table(elsa).operating_point(1.01) is None


def test_task_without_a_baseline_is_left_out(elsa: list[RunRecord]) -> None:
    some = [it for it in elsa if it.run.task == "toy" or num_frozen(it.run) is not None]

    assert elsa_table(some).tasks == ["toy"]
    assert "other" not in elsa_table(some).markdown()


def test_variants_stand_by_their_average_and_the_baseline_is_named(folder: Path) -> None:
    regularizers: JsonValue = [
        {"name": "graddrop"},
        {"name": "none", "recipe": {"dropout": 0.2}},
        {"name": "gradfreeze-bottomup", "recipe": {"dropout": 0.2}},
    ]
    runs = toy_runs(folder, methods=[{"kind": "full"}], regularizers=regularizers)
    scores = {"graddrop": 0.9, "none": 0.5, "gradfreeze-bottomup": 0.2}
    records = [
        record_of(run, scores[run.description.recipe.regularizer.name.value]) for run in runs
    ]

    lines = graddrop_markdown(graddrop_cells(records)).splitlines()

    assert len(cells_of(records)) == 3
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| graddrop 0.2", "| SFT", "| gradfreeze-bottomup",
    ]  # fmt: skip


def test_a_part_without_results_says_how_to_get_them_and_nothing_else(tmp_path: Path) -> None:
    text = section("Learning rates", "robustness", [], "")

    assert text == "## Learning rates: not measured\n\n`make papers ONLY=robustness DATA=folder`\n"
    assert "ONLY=rsa" in inside_section(tmp_path)
    assert "ONLY=landscape" in inside_section(tmp_path)
