"""The report of a sweep from the results alone: all runs, the mean over seeds, and plots."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nunatak_contract.cards import markdown_table
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_training.recipes import METHODS, Recipe, default_recipe
from nunatak_training.settings import flattened
from nunatak_training.sweeps.results import Failed, Finished, RunDescription, RunRecord

DIGITS = 6
TASK = "task"


def run_text(run: RunDescription) -> str:
    parts = [run.task, method_label(run)]
    regularizer = regularizer_label(run.recipe)
    if regularizer != "none":
        parts.append(regularizer)
    if run.train_cap is not None:
        parts.append(f"{run.train_cap} examples")
    parts += [f"rate {run.recipe.learning_rate:g}", f"seed {run.recipe.seed}"]
    return ", ".join(parts)


def method_label(run: RunDescription) -> str:
    """The method with its most important setting; for `topk` the number of frozen layers."""
    tapt = run.recipe.tapt
    if tapt is None:
        return _plain_label(run)
    return f"{_plain_label(run)} after TAPT of {tapt.epochs} epoch{'s' * (tapt.epochs > 1)}"


def _plain_label(run: RunDescription) -> str:
    frozen, method = num_frozen(run), run.recipe.method
    if frozen is not None:
        return f"frozen {frozen}"
    width = "" if method.width is None else f" {method.width}"
    first_layer: int = getattr(method, "first_layer", 0)
    return f"{method.kind}{width}" + (f" from layer {first_layer}" if first_layer else "")


def regularizer_label(recipe: Recipe) -> str:
    """The regularizer with its rate; dropout at an unusual rate also counts as a regularizer."""
    settings = recipe.regularizer.model_dump(mode="json")
    rate = settings.get("rate")
    if rate is not None:
        return f"{settings['name']} {rate:g}"
    usual = Recipe.model_fields["dropout"].default
    if settings["name"] == "none" and recipe.dropout != usual:
        return f"dropout {recipe.dropout:g}"
    return str(settings["name"])


def num_frozen(run: RunDescription) -> int | None:
    match run.recipe.method:
        case TopK(num_layers=own):
            return run.backbone.num_layers - own
        case HeadOnly():
            return run.backbone.num_layers
        case _:
            return None


AXES: dict[str, Callable[[RunDescription], str]] = {
    TASK: lambda run: run.task,
    "backbone": lambda run: run.backbone.name,
    "examples": lambda run: str(run.data.num_train),
    "method": method_label,
    "regularizer": lambda run: regularizer_label(run.recipe),
    "learning rate": lambda run: f"{run.recipe.learning_rate:g}",
}
"""The axes of a sweep, without the seed."""
SAID = frozenset({"backbone", "learning_rate", "regularizer", "seed"})
"""Settings of a recipe that have a column of their own."""


def settings_label(run: RunDescription) -> str:
    """The other settings that differ from the defaults of the method."""
    usual = flattened(default_recipe(METHODS[run.recipe.method.kind]).settings())
    told = flattened(run.recipe.settings()).items()
    found = {name: it for name, it in told if name.partition(".")[0] not in SAID}
    return ", ".join(f"{name} {it}" for name, it in found.items() if it != usual.get(name))


ORIGINS: dict[str, Callable[[RunDescription], str]] = {
    "settings": settings_label,
    "data": lambda run: "/".join(digest[:DIGITS] for digest in _digests(run)),
    "weights": lambda run: run.backbone.digest[:DIGITS],
}
"""What may differ on equal axes: other settings, the examples (train/dev/test), the backbone."""
COLUMNS = {**AXES, **ORIGINS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    columns: Mapping[str, str]
    runs: tuple[RunDescription, ...]
    outcomes: tuple[Finished, ...]
    failures: tuple[Failed, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.columns[name] for name in AXES)

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(outcome.score for outcome in self.outcomes)


def cells_of(records: Sequence[RunRecord]) -> tuple[Cell, ...]:
    # Runs may also differ in settings without a column, in their examples, or in the weights of a
    # backbone of the same name. Such runs get separate cells.
    found = defaultdict[tuple[str, ...], list[RunRecord]](list)
    for record in records:
        run = record.run
        settings = run.recipe.model_dump_json(exclude={"seed", "backbone"})
        axes = (column(run) for column in AXES.values())
        found[*axes, settings, *_digests(run), run.backbone.digest].append(record)
    return tuple(
        Cell(
            columns=columns_of(members[0].run),
            runs=tuple(it.run for it in members if isinstance(it.outcome, Finished)),
            outcomes=tuple(it.outcome for it in members if isinstance(it.outcome, Finished)),
            failures=tuple(it.outcome for it in members if isinstance(it.outcome, Failed)),
        )
        for members in found.values()
    )


def columns_of(run: RunDescription) -> dict[str, str]:
    return {name: column(run) for name, column in COLUMNS.items()}


def shown_columns(cells: Sequence[Cell]) -> list[str]:
    """The task, the axes that vary, and the origins that tell cells of the same axes apart."""
    by_axes = defaultdict[tuple[str, ...], list[Cell]](list)
    for cell in cells:
        by_axes[cell.axes].append(cell)
    return [
        name
        for name in COLUMNS
        if name == TASK
        or any(
            len({cell.columns[name] for cell in compared}) > 1
            for compared in ([cells] if name in AXES else by_axes.values())
        )
    ]


def _digests(run: RunDescription) -> tuple[str, ...]:
    return run.data.train_digest, run.data.dev_digest, run.data.test_digest or ""


def runs_csv(records: Sequence[RunRecord]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    outcome = ("metric", "dev", "test", "best epoch", "parameters", "seconds", "error")
    writer.writerow([*COLUMNS, "seed", *outcome])
    for record in records:
        described = columns_of(record.run).values()
        writer.writerow([*described, record.run.recipe.seed, *_outcome_columns(record)])
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
    """Mean and standard deviation over seeds, without axes that do not vary.

    Columns for examples and weights tell apart rows of equal names.
    """
    names = shown_columns(cells)
    rows = [[*(cell.columns[name] for name in names), *_score_columns(cell)] for cell in cells]
    return markdown_table([*names, "metric", "mean", "std", "best", "seeds"], rows)


def _score_columns(cell: Cell) -> list[str]:
    failed = f" ({len(cell.failures)} failed: {cell.failures[0].code})" if cell.failures else ""
    if not cell.scores:
        return ["", "", "", "", f"0{failed}"]
    return [
        cell.outcomes[0].metric,
        f"{mean(cell.scores):.4f}",
        f"{deviation(cell.scores):.4f}" if len(cell.scores) > 1 else "",
        f"{max(cell.scores):.4f}",
        f"{len(cell.scores)}{failed}",
    ]


def deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


COLOURS = (
    *("#009e73", "#d55e00", "#0072b2", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7b4fb5", "#8a6d3b", "#8a8f96"),
)
"""Okabe and Ito's colours without black and yellow, and more for long sweeps."""
MARKERS = "os^vDPXd*"
LOOKS = cycler(color=COLOURS) + cycler(marker=MARKERS)
"""Colours tell lines apart; marks do so for any colour vision."""
LETTER, HANDLE = 0.075, 0.6
"""Inches of a letter and of a line with its gaps, in a legend."""
LEGEND_SIZE = 8
COLUMNS_OF_PLOTS = 3


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
    return sorted(records, key=_order)


def _order(record: RunRecord) -> tuple[str, int, str, str, str, float, int]:
    run = record.run
    method = run.recipe.method
    return (
        run.task,
        run.data.num_train,
        method.kind,
        f"{getattr(method, 'num_layers', 0):04}{method.width or 0:04}",
        run.recipe.regularizer.name,
        run.recipe.learning_rate,
        run.recipe.seed,
    )


def save_scores(cells: Sequence[Cell], path: Path) -> None:
    """One panel a task: mean score of each setting, with one standard deviation over seeds."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        found = [cell for cell in reversed(members) if cell.scores]
        axes.errorbar(
            [mean(cell.scores) for cell in found],
            range(len(found)),
            xerr=[deviation(cell.scores) for cell in found],
            fmt="o",
            capsize=3,
        )
        axes.set_yticks(range(len(found)), [label_of(cell, cells) for cell in found])
        axes.set_xlabel(f"{found[0].outcomes[0].metric}, of dev examples" if found else "")
        axes.set_title(task)
    drawing.savefig(path, dpi=120)


def save_curves(cells: Sequence[Cell], path: Path) -> None:
    """One panel a task: dev score over epochs, the mean of the seeds, a line for each setting."""
    drawing, panels = panels_by_task(cells)
    for axes, (task, members) in panels:
        for cell in members:
            curve = mean_curve(cell)
            epochs, scores = [epoch for epoch, _ in curve], [score for _, score in curve]
            axes.plot(epochs, scores, ms=5, label=label_of(cell, cells))
        whole_numbers(axes)
        axes.set_xlabel("epoch")
        axes.set_ylabel("dev score")
        axes.set_title(task)
    legend_below(drawing, [axes for axes, _ in panels])
    drawing.savefig(path, dpi=120)


def mean_curve(cell: Cell) -> list[tuple[int, float]]:
    curves = [{it.epoch: it.dev_score for it in outcome.epochs} for outcome in cell.outcomes]
    shared = set[int].intersection(*map(set, curves)) if curves else set[int]()
    return [(epoch, mean(curve[epoch] for curve in curves)) for epoch in sorted(shared)]


def panels_by_task(
    cells: Sequence[Cell],
) -> tuple[Figure, list[tuple[Axes, tuple[str, list[Cell]]]]]:
    by_task: dict[str, list[Cell]] = {}
    for cell in cells:
        by_task.setdefault(cell.columns[TASK], []).append(cell)
    num_rows = -(-len(by_task) // COLUMNS_OF_PLOTS)
    num_columns = min(COLUMNS_OF_PLOTS, len(by_task))
    # Not a figure of pyplot, because pyplot keeps its figures in a global list.
    drawing = Figure(figsize=(5.5 * num_columns, 4 * num_rows), layout="constrained")
    grid = drawing.subplots(num_rows, num_columns, squeeze=False)
    for axes in grid.flat:
        axes.set_prop_cycle(LOOKS)
    for spare in grid.flat[len(by_task) :]:
        spare.set_axis_off()
    return drawing, list(zip(grid.flat, by_task.items(), strict=False))


def label_of(cell: Cell, cells: Sequence[Cell]) -> str:
    """The columns that tell cells apart, except the task."""
    names = (name for name in shown_columns(cells) if name != TASK)
    return ", ".join(cell.columns[name] for name in names) or "all seeds"


def legend_below(drawing: Figure, panels: Iterable[Axes]) -> None:
    found = dict[str, Artist]()
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if not found:
        return
    width = drawing.get_figwidth() / (HANDLE + LETTER * max(map(len, found)))
    drawing.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=max(1, min(len(found), int(width))),
        fontsize=LEGEND_SIZE,
        frameon=False,
    )


def whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
