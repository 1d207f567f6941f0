"""Analyses that look into trained tasks: they train the runs of a sweep and keep no weights."""

# matplotlib leaves the keyword arguments of its methods untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nunatak_model import Backbone, Encoding, build_branch
from nunatak_training.analysis.findings import Findings
from nunatak_training.analysis.landscape import landscape
from nunatak_training.analysis.rsa import NUM_TOKENS, layer_similarities
from nunatak_training.analysis.transfer import load_test_set, transfer
from nunatak_training.data import ExampleSet, TaskData
from nunatak_training.fitting import TrainedTask
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.running import Bench
from nunatak_training.sweeps.wording import run_text

SURPLUS = 2
"""Texts are read until they have so many times the tokens that are drawn from them."""


def analyze_rsa(runs: Sequence[Run], bench: Bench, *, num_tokens: int = NUM_TOKENS) -> Findings:
    """Similarity to the backbone after each layer, on tokens of the dev examples.

    Raises:
        TrainingError: a run is at fault.
        ModelError: its method does not fit the backbone.
    """
    drawing, axes = _drawing("layer", "similarity to the backbone")
    rows: list[tuple[str | float, ...]] = []
    for run in runs:
        backbone, trained = bench.backbone(run.backbone), bench.fit(run)
        branch = build_branch(trained.spec, backbone.config, trained.parameters)
        inputs = _aligned(trained, backbone, num_tokens=num_tokens)
        found = layer_similarities(backbone, branch, inputs, num_tokens=num_tokens)
        layers = range(1, len(found) + 1)
        axes.plot(layers, found, marker="o", ms=3, label=run_text(run.description))
        rows += [
            (run_text(run.description), layer, value)
            for layer, value in zip(layers, found, strict=True)
        ]
    axes.legend(fontsize=7)
    return Findings(
        name="rsa", header=("run", "layer", "similarity"), rows=tuple(rows), drawing=drawing
    )


def analyze_landscape(runs: Sequence[Run], bench: Bench) -> Findings:
    """Loss of the dev examples along the line from before training through the trained task.

    Raises:
        TrainingError: a run is at fault.
        ModelError: its method does not fit the backbone.
    """
    drawing, axes = _drawing("a", "dev loss at t0 + a (t1 - t0)")
    rows: list[tuple[str | float, ...]] = []
    for run in runs:
        trained = bench.fit(run)
        points = landscape(trained, bench.backbone(run.backbone), trained.data.dev)
        axes.plot(
            [it.alpha for it in points],
            [it.loss for it in points],
            marker="o",
            ms=3,
            label=run_text(run.description),
        )
        rows += [(run_text(run.description), it.alpha, it.loss) for it in points]
    axes.legend(fontsize=7)
    return Findings(
        name="landscape", header=("run", "a", "loss"), rows=tuple(rows), drawing=drawing
    )


def analyze_transfer(runs: Sequence[Run], bench: Bench, tests: Mapping[str, Path]) -> Findings:
    """Scores on other sets, beside those on the dev examples.

    Raises:
        DataError: a test set is missing or broken, or has labels of its own.
        TrainingError: a run is at fault.
        ModelError: its method does not fit the backbone.
    """
    drawing, axes = _drawing("", "score")
    rows: list[tuple[str | float, ...]] = []
    # All are read first: a slip in a file shall not cost the training.
    sets_of = [_test_sets(tests, bench.data(run.source).data) for run in runs]
    for run, sets in zip(runs, sets_of, strict=True):
        trained = bench.fit(run)
        found = transfer(trained, sets, bench.backbone(run.backbone))
        scores = {"own dev": found.own, **found.others}
        axes.plot(list(scores), list(scores.values()), "o", label=run_text(run.description))
        rows += [
            (run_text(run.description), name, found.metric, score, score - found.own)
            for name, score in scores.items()
        ]
    axes.legend(fontsize=7)
    return Findings(
        name="transfer",
        header=("run", "set", "metric", "score", "against own dev"),
        rows=tuple(rows),
        drawing=drawing,
    )


def _test_sets(tests: Mapping[str, Path], data: TaskData) -> dict[str, ExampleSet]:
    return {name: load_test_set(path, data) for name, path in tests.items()}


def _aligned(trained: TrainedTask, backbone: Backbone, *, num_tokens: int) -> list[Encoding]:
    """Dev examples in windows that know their special tokens; no more than the sample may need."""
    windows = backbone.tokenizer.encode_windows(
        [example.model_input for example in trained.data.dev.examples],
        max_length=trained.recipe.max_length,
        stride=0,
    )
    chosen: list[Encoding] = []
    for encoding in (it[0] for it in windows):
        if sum(it.num_tokens for it in chosen) >= SURPLUS * num_tokens:
            break
        chosen.append(encoding)
    return chosen


def _drawing(across: str, up: str) -> tuple[Figure, Axes]:
    drawing = Figure(figsize=(7, 4.5), layout="constrained")
    axes = drawing.subplots()
    axes.set(xlabel=across, ylabel=up)
    return drawing, axes
