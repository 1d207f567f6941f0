"""Tables of a sweep's results: every run, and the runs that differ in their seed alone together."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from nunatak_training.sweeps.records import Failed, Finished, RunDescription, RunRecord
from nunatak_training.sweeps.wording import method_label, regularizer_label

COLUMNS: dict[str, Callable[[RunDescription], str]] = {
    "task": lambda run: run.task,
    "backbone": lambda run: run.backbone.name,
    "examples": lambda run: str(run.data.num_train),
    "method": method_label,
    "regularizer": lambda run: regularizer_label(run.recipe),
    "learning rate": lambda run: f"{run.recipe.learning_rate:g}",
}
"""The axes of a sweep, all but the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All runs with the same settings and different seeds."""

    axes: tuple[str, ...]
    """In the order of `COLUMNS`."""
    runs: tuple[RunDescription, ...]
    """Of those that finished."""
    outcomes: tuple[Finished, ...]
    failures: tuple[Failed, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        """Of each seed."""
        return tuple(outcome.score for outcome in self.outcomes)


def cells_of(records: Sequence[RunRecord]) -> tuple[Cell, ...]:
    """Put together what differs in its seed alone, in the order of the records."""
    # Runs may differ in settings that no column names: those are cells of their own.
    found = defaultdict[tuple[tuple[str, ...], str], list[RunRecord]](list)
    for record in records:
        axes = tuple(column(record.run) for column in COLUMNS.values())
        settings = record.run.recipe.model_dump_json(exclude={"seed", "backbone"})
        found[axes, settings].append(record)
    return tuple(
        Cell(
            axes=axes,
            runs=tuple(it.run for it in members if isinstance(it.outcome, Finished)),
            outcomes=tuple(it.outcome for it in members if isinstance(it.outcome, Finished)),
            failures=tuple(it.outcome for it in members if isinstance(it.outcome, Failed)),
        )
        for (axes, _), members in found.items()
    )


def runs_csv(records: Sequence[RunRecord]) -> str:
    """Return every run as a row, with its score or why it has none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [*COLUMNS, "seed", "metric", "dev", "test", "best epoch", "parameters", "seconds", "error"]
    )
    for record in records:
        axes = [column(record.run) for column in COLUMNS.values()]
        writer.writerow([*axes, record.run.recipe.seed, *_outcome_columns(record)])
    return text.getvalue()


def _outcome_columns(record: RunRecord) -> list[object]:
    match record.outcome:
        case Finished() as found:
            return [
                found.metric,
                found.scores[found.metric],
                found.test_scores.get(found.metric, ""),
                found.best_epoch,
                found.num_parameters,
                record.seconds,
                "",
            ]
        case failed:
            return ["", "", "", "", "", record.seconds, f"{failed.code}: {failed.message}"]


def cells_markdown(cells: Sequence[Cell]) -> str:
    """Return mean and standard deviation over seeds; axes that do not vary are left out."""
    names = tuple(COLUMNS)
    varied = [
        column
        for column, name in enumerate(names)
        if name == "task" or len({cell.axes[column] for cell in cells}) > 1
    ]
    header = [*(names[column] for column in varied), "metric", "mean", "std", "best", "seeds"]
    rows = [[*(cell.axes[column] for column in varied), *_score_columns(cell)] for cell in cells]
    return markdown_table(header, rows)


def _score_columns(cell: Cell) -> list[str]:
    failed = f" ({len(cell.failures)} failed: {cell.failures[0].code})" if cell.failures else ""
    if not cell.scores:
        return ["", "", "", "", f"0{failed}"]
    return [
        cell.outcomes[0].metric,
        f"{mean(cell.scores):.4f}",
        f"{deviation(cell.scores):.4f}",
        f"{max(cell.scores):.4f}",
        f"{len(cell.scores)}{failed}",
    ]


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 of a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
