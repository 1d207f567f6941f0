"""The report of a sweep: tables and plots from the results alone."""

from collections.abc import Sequence
from pathlib import Path

from nunatak_training.sweeps.plots import save_curves, save_scores
from nunatak_training.sweeps.results import RunRecord
from nunatak_training.sweeps.tables import cells_markdown, cells_of, runs_csv


def write_report(records: Sequence[RunRecord], folder: Path) -> tuple[Path, ...]:
    """Write `runs.csv`, `table.md`, `scores.png` and `curves.png`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = in_order(records)
    cells = cells_of(ordered)
    paths = tuple(folder / name for name in ("runs.csv", "table.md", "scores.png", "curves.png"))
    runs, table, scores, curves = paths
    runs.write_text(runs_csv(ordered), encoding="utf-8")
    table.write_text(cells_markdown(cells), encoding="utf-8")
    save_scores(cells, scores)
    save_curves(cells, curves)
    return paths


def in_order(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The key of records in a report: task, examples, method, regularizer, rate and seed."""
    return sorted(records, key=_order)


def _order(record: RunRecord) -> tuple[str, int, str, str, str, float, int]:
    run = record.run
    method = run.recipe.method
    return (
        run.task,
        run.data.num_train,
        method.kind,
        f"{getattr(method, 'num_layers', 0):04}{getattr(method, 'size', 0):04}",
        run.recipe.regularizer.name,
        run.recipe.learning_rate,
        run.recipe.seed,
    )
