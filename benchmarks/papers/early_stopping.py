"""Early stopping: the steps saved by the default `patience` on small data, and the lost score.

Each set is cut to few train examples, so that `min_steps` gives many epochs. The default recipe of
two top layers trains each set twice: with `patience` null, and with the default `patience`. Both
runs are scored on dev examples, which choose the best epoch, and on examples that neither run has
seen. Sets with a result in the results folder are not trained again. With `--only`, one set is
trained and nothing is recorded.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from benchmarks.harness.recording import FIGURES, Sheet, figures_parser, hardware
from nunatak_contract.methods import TopK
from nunatak_model import Backbone, load_backbone
from nunatak_registry.cards import markdown_table
from nunatak_training.data import ExampleSet, TaskData, load_task_data
from nunatak_training.fitting import evaluate, fit_task
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import SilentReport

SETS = (
    "sst2",
    "trec",
    "subj",
    "mrpc",
    "cola",
    "cr",
    "snips_intent",
    "tweet_emotion",
    "stsb",
    "scierc_ner",
)
NUM_DEV = 200
NUM_UNSEEN = 500
METHOD = TopK(num_layers=2)
PAGE = FIGURES.parent / "early-stopping.md"
COLUMNS = (
    "set",
    "metric",
    "steps",
    "best epoch",
    "dev",
    "unseen",
    "seconds",
)


class Run(BaseModel):
    """One training."""

    model_config = ConfigDict(frozen=True)

    steps: int
    best_epoch: int
    dev_score: float
    unseen_score: float
    seconds: float
    dev_scores: tuple[float, ...]
    """The dev score of each scored epoch."""


class Result(BaseModel):
    """Both trainings of a set."""

    model_config = ConfigDict(frozen=True)

    name: str
    metric: str
    full: Run
    early: Run


def main() -> None:
    """Train the sets that have no result yet, then write the page and the figures of all."""
    parser = figures_parser(__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETS), help="sets to record")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per set")
    parser.add_argument("--rows", type=int, default=300, help="train examples of each set")
    parser.add_argument("--results", type=Path, default=Path(".bench/early-stopping"))
    parser.add_argument("--only", choices=SETS, help="train this set alone")
    parser.add_argument("--reason", help="why the time misses its goal, if it does")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    wanted = options.sets if options.only is None else [options.only]
    missing = [name for name in wanted if not _file(options.results, name).exists()]
    for name in missing:
        result = compared(name, cut_data(options.data / name, options.rows), load_backbone())
        _file(options.results, name).write_text(result.model_dump_json(indent=2), encoding="utf-8")
        print(f"{name}: {result.early.steps} of {result.full.steps} steps", flush=True)
    if options.only is None:
        found = [_file(options.results, name).read_text(encoding="utf-8") for name in wanted]
        results = [Result.model_validate_json(text) for text in found]
        sheet = Sheet(command=_command(wanted, options.rows), file=options.figures, rounds=1)
        record(results, sheet, reason=options.reason)
        text = page(results, rows=options.rows, command=sheet.command)
        if options.reason is not None:
            text += f"\nThe seconds: {options.reason}.\n"
        PAGE.write_text(text, encoding="utf-8")


def _command(names: Sequence[str], rows: int) -> str:
    named = "" if tuple(names) == SETS else f" {' '.join(names)}"
    return f"python -m benchmarks.papers.early_stopping{named} --data DATA --rows {rows}"


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def cut_data(folder: Path, rows: int) -> tuple[TaskData, ExampleSet]:
    """Return the first examples of a set, and dev examples that training does not see."""
    data = load_task_data(folder)
    train, dev = data.train.examples, data.dev.examples
    num_dev = min(NUM_DEV, len(dev) // 2)
    cut = replace(
        data,
        train=ExampleSet(examples=train[:rows]),
        dev=ExampleSet(examples=dev[:num_dev]),
    )
    return cut, ExampleSet(examples=dev[num_dev : num_dev + NUM_UNSEEN])


def compared(name: str, data: tuple[TaskData, ExampleSet], backbone: Backbone) -> Result:
    """Train a set with and without the default patience."""
    early = default_recipe(METHOD)
    whole = default_recipe(METHOD, changes={"patience": None})
    metric, full_run = measured(whole, *data, backbone)
    _, early_run = measured(early, *data, backbone)
    return Result(name=name, metric=metric, full=full_run, early=early_run)


def measured(
    recipe: Recipe, data: TaskData, unseen: ExampleSet, backbone: Backbone
) -> tuple[str, Run]:
    """Train once; return the metric that chooses the epoch, and the run."""
    started = time.perf_counter()
    trained = fit_task(data, recipe, backbone, report=SilentReport())
    seconds = time.perf_counter() - started
    metric = next(iter(trained.scores))
    run = Run(
        steps=trained.history[-1].step,
        best_epoch=trained.best_epoch,
        dev_score=trained.scores[metric],
        unseen_score=evaluate(trained, unseen, backbone).values[metric],
        seconds=seconds,
        dev_scores=tuple(result.dev_score for result in trained.history),
    )
    return metric.value, run


def record(results: list[Result], sheet: Sheet, *, reason: str | None) -> None:
    """Record the saved steps and the lost score."""
    sheet.record(
        "training.early.steps",
        [sum(it.early.steps for it in results) / sum(it.full.steps for it in results)],
        unit=f"of the steps of all epochs, {len(results)} sets",
        goal="<= 0.5",
    )
    sheet.record(
        "training.early.seconds",
        [sum(it.early.seconds for it in results) / sum(it.full.seconds for it in results)],
        unit=f"of the time of all epochs, {len(results)} sets",
        goal="<= 0.5",
        reason=reason,
    )
    for part, score in (("dev", "dev_score"), ("unseen", "unseen_score")):
        change = fmean(getattr(it.early, score) - getattr(it.full, score) for it in results)
        sheet.record(
            f"training.early.{part}_points",
            [100 * change],
            unit=f"points gained on {part} examples, mean of {len(results)} sets",
            goal=">= -1",
        )


def page(results: list[Result], *, rows: int, command: str) -> str:
    """The results as a document."""
    lines = (
        (
            it.name,
            it.metric,
            f"{it.early.steps} / {it.full.steps}",
            f"{it.early.best_epoch} / {it.full.best_epoch}",
            f"{it.early.dev_score:.4f} / {it.full.dev_score:.4f}",
            f"{it.early.unseen_score:.4f} / {it.full.unseen_score:.4f}",
            f"{it.early.seconds:.0f} / {it.full.seconds:.0f}",
        )
        for it in results
    )
    patience = default_recipe(METHOD).patience
    return (
        "# Early stopping\n\n"
        f"{len(results)} sets, {rows} train examples each, two top layers of MiniLM by default.\n"
        f"Each cell is *with the default patience of {patience}* / *all epochs* (null).\n"
        f"Up to {NUM_DEV} dev examples choose the epoch; the scores in *unseen* come from up to\n"
        f"{NUM_UNSEEN} other examples. Full data sets need few epochs, which patience does not\n"
        "shorten.\n\n"
        f"{markdown_table(COLUMNS, lines)}\n"
        f"Command: `{command}`; {hardware()}.\n"
    )


if __name__ == "__main__":
    main()
