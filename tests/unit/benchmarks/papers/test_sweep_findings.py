"""Laws of the analyses that read a sweep's results."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from benchmarks.papers.sweep_findings import (
    Findings,
    analyze_lowresource,
    analyze_robustness,
    average_gains,
    box,
    gains,
    save_findings,
)
from doubles.backbones import save_tiny_backbone
from doubles.refusals import raises
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.reporting import cells_of
from nunatak_training.sweeps.results import RunRecord


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(name="runs", scope="module")
def make_runs(folder: Path) -> tuple[Run, ...]:
    """Runs with full, then bottleneck; each with 8 and 16 examples; each with seeds 0 and 1."""
    methods: list[JsonValue] = [{"kind": "full"}, {"kind": "bottleneck", "size": 8}]
    return tuple(
        run
        for method in methods
        for cap in (8, 16)
        for run in toy_runs(folder, methods=[method], train_caps=[cap], seeds=[0, 1])
    )


SCORES = (0.4, 0.6, 0.7, 0.9, 0.6, 0.8, 0.8, 0.8)


def test_gain_is_the_mean_above_full_fine_tuning_on_as_many_examples(runs: tuple[Run, ...]) -> None:
    found = gains(cells_of([record_of(*it) for it in zip(runs, SCORES, strict=True)]))

    assert [(it.method, it.num_train) for it in found] == [
        ("bottleneck 8", 8),
        ("bottleneck 8", 16),
    ]
    assert [it.gain for it in found] == pytest.approx([0.7 - 0.5, 0.8 - 0.8])
    assert average_gains(found)["backbone", "bottleneck 8", 8] == pytest.approx(0.2)


def test_gains_need_a_baseline(runs: tuple[Run, ...]) -> None:
    with raises("invalid_sweep", match="full fine-tuning on 8 examples"):
        gains(cells_of([record_of(runs[4], 0.5)]))


def test_box_is_the_quantiles_of_the_seeds() -> None:
    scores = [0.5, 0.1, 0.9, 0.3, 0.4, 0.2]

    assert box(scores) == pytest.approx((0.1, 0.225, 0.35, 0.475, 0.9))


@pytest.mark.parametrize("analyze", [analyze_robustness, analyze_lowresource])
def test_findings_are_a_table_twice_and_a_plot_and_leave_failures_out(
    runs: tuple[Run, ...], tmp_path: Path, analyze: Callable[[Sequence[RunRecord]], Findings]
) -> None:
    records = [record_of(*it) for it in zip(runs, SCORES, strict=True)]
    failed = record_of(runs[1])

    paths = save_findings(analyze([*records[:1], failed, *records[2:]]), tmp_path)

    assert [path.suffix for path in paths] == [".csv", ".md", ".png"]
    lines = paths[0].read_text().splitlines()
    assert len(lines) > 1
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert all(path.stat().st_size > 0 for path in paths)


def with_test_score(run: Run, *, dev: float, test: float) -> RunRecord:
    record = record_of(run, dev)
    scored = record.outcome.model_copy(update={"test_scores": {"accuracy": test}})
    return record.model_copy(update={"outcome": scored})


def test_learning_rate_is_chosen_by_dev_scores_where_test_scores_are_reported(folder: Path) -> None:
    runs = toy_runs(
        folder, methods=[{"kind": "full"}, {"kind": "lora"}], learning_rates=[1e-4, 1e-3]
    )
    scores = {1e-4: {"dev": 0.9, "test": 0.6}, 1e-3: {"dev": 0.8, "test": 0.7}}

    (found,) = gains(
        cells_of(
            [with_test_score(run, **scores[run.description.recipe.learning_rate]) for run in runs]
        )
    )

    assert (found.score, found.baseline) == (0.6, 0.6)


def test_gain_is_over_full_fine_tuning_of_the_same_backbone(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = save_tiny_backbone(tmp_path_factory.mktemp("other") / "wide", num_layers=2)
    runs = toy_runs(
        folder,
        backbones=[str(folder / "backbone"), str(other)],
        methods=[{"kind": "full"}, {"kind": "lora"}],
    )
    scores = {("backbone", "full"): 0.2, ("backbone", "lora"): 0.5} | {
        ("wide", "full"): 0.9,
        ("wide", "lora"): 0.8,
    }
    records = [
        record_of(run, scores[run.description.backbone.name, run.description.recipe.method.kind])
        for run in runs
    ]

    found = gains(cells_of(records))

    assert {it.backbone: it.gain for it in found} == pytest.approx({"backbone": 0.3, "wide": -0.1})
    assert set(average_gains(found)) == {("backbone", "lora 8", 24), ("wide", "lora 8", 24)}


@pytest.mark.parametrize("analyze", [analyze_robustness, analyze_lowresource])
def test_results_of_which_no_run_finished_are_refused(
    runs: tuple[Run, ...], analyze: Callable[[Sequence[RunRecord]], Findings]
) -> None:
    with raises("invalid_sweep", match="a run that finished, got 2 that failed"):
        analyze([record_of(run) for run in runs[:2]])
