"""Tables of a sweep's results: one of all runs, and one with the mean over seeds."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from nunatak_contract.cards import markdown_table
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_training.recipes import Recipe
from nunatak_training.sweeps.results import Failed, Finished, RunDescription, RunRecord

DIGITS = 6


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


COLUMNS: dict[str, Callable[[RunDescription], str]] = {
    "task": lambda run: run.task,
    "backbone": lambda run: run.backbone.name,
    "examples": lambda run: str(run.data.num_train),
    "method": method_label,
    "regularizer": lambda run: regularizer_label(run.recipe),
    "learning rate": lambda run: f"{run.recipe.learning_rate:g}",
}
"""The axes of a sweep, without the seed."""
ORIGINS: dict[str, Callable[[RunDescription], str]] = {
    "data": lambda run: "/".join(digest[:DIGITS] for digest in _digests(run)),
    "weights": lambda run: run.backbone.digest[:DIGITS],
}
"""Origins that may differ under equal names: the examples (train/dev/test) and the backbone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All runs with the same settings and different seeds."""

    axes: tuple[str, ...]
    """Values in the order of `COLUMNS`."""
    origins: tuple[str, ...]
    """Digests in the order of `ORIGINS`."""
    runs: tuple[RunDescription, ...]
    outcomes: tuple[Finished, ...]
    failures: tuple[Failed, ...]

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
        same = (*_columns(COLUMNS, run), settings, *_digests(run), run.backbone.digest)
        found[same].append(record)
    return tuple(
        Cell(
            axes=_columns(COLUMNS, members[0].run),
            origins=_columns(ORIGINS, members[0].run),
            runs=tuple(it.run for it in members if isinstance(it.outcome, Finished)),
            outcomes=tuple(it.outcome for it in members if isinstance(it.outcome, Finished)),
            failures=tuple(it.outcome for it in members if isinstance(it.outcome, Failed)),
        )
        for members in found.values()
    )


def telling_origins(cells: Sequence[Cell]) -> tuple[int, ...]:
    """The positions in `ORIGINS` that distinguish cells on the same axes."""
    seen = defaultdict[tuple[int, tuple[str, ...]], set[str]](set)
    for cell in cells:
        for position, origin in enumerate(cell.origins):
            seen[position, cell.axes].add(origin)
    return tuple(sorted({position for (position, _), found in seen.items() if len(found) > 1}))


def _columns(
    columns: Mapping[str, Callable[[RunDescription], str]], run: RunDescription
) -> tuple[str, ...]:
    return tuple(column(run) for column in columns.values())


def _digests(run: RunDescription) -> tuple[str, ...]:
    return run.data.train_digest, run.data.dev_digest, run.data.test_digest or ""


def runs_csv(records: Sequence[RunRecord]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    outcome = ("metric", "dev", "test", "best epoch", "parameters", "seconds", "error")
    writer.writerow([*COLUMNS, *ORIGINS, "seed", *outcome])
    for record in records:
        described = [*_columns(COLUMNS, record.run), *_columns(ORIGINS, record.run)]
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
    names = tuple(COLUMNS)
    varied = [
        column
        for column, name in enumerate(names)
        if name == "task" or len({cell.axes[column] for cell in cells}) > 1
    ]
    origins = telling_origins(cells)
    header = [
        *(names[column] for column in varied),
        *(tuple(ORIGINS)[origin] for origin in origins),
        *("metric", "mean", "std", "best", "seeds"),
    ]
    rows = [
        [
            *(cell.axes[column] for column in varied),
            *(cell.origins[origin] for origin in origins),
            *_score_columns(cell),
        ]
        for cell in cells
    ]
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
    return stdev(values) if len(values) > 1 else 0.0
