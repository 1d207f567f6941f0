"""Analyses of trained tasks. Each analysis trains the runs of a sweep and keeps no weights."""

from collections.abc import Sequence

from benchmarks.papers.analysis.findings import Findings
from benchmarks.papers.analysis.landscape import landscape
from benchmarks.papers.analysis.lines import draw_lines
from benchmarks.papers.analysis.rsa import NUM_TOKENS, layer_similarities, sampled_tokens
from nunatak_model import Backbone, Encoding, build_branch
from nunatak_training.fitting import TrainedTask
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.reporting import run_text, whole_numbers
from nunatak_training.sweeps.running import RunContext

SURPLUS = 2
"""Texts are read until they have this multiple of the number of sampled tokens."""


def analyze_rsa(
    runs: Sequence[Run], context: RunContext, *, num_tokens: int = NUM_TOKENS
) -> Findings:
    """Measure the similarity to the backbone after each layer, on tokens of the dev examples.

    Raises:
        NunatakError: a run cannot be trained.
        NunatakError: the method of a run does not fit the backbone.
    """
    rows: list[tuple[str, float, float]] = []
    for run in runs:
        backbone, trained = context.backbone(run.origin.backbone), context.fit(run)
        branch = build_branch(trained.spec, backbone.config, trained.parameters)
        inputs = _aligned(trained, backbone, num_tokens=num_tokens)
        found = layer_similarities(backbone, branch, inputs, num_tokens=num_tokens)
        # Short texts give fewer tokens than asked for, which the table must say.
        drawn = len(sampled_tokens(inputs, num_tokens=num_tokens, seed=0))
        name = f"{run_text(run.description)}, {drawn} tokens"
        rows += [(name, layer, value) for layer, value in enumerate(found, start=1)]
    drawing, axes = draw_lines(rows, across="layer", up="similarity to the backbone")
    whole_numbers(axes)
    header = ("run", "layer", "similarity")
    return Findings(name="rsa", header=header, rows=tuple(rows), drawing=drawing)


def analyze_landscape(runs: Sequence[Run], context: RunContext) -> Findings:
    """Measure the loss of the dev examples on the line from the start to the trained task.

    Raises:
        NunatakError: a run cannot be trained.
        NunatakError: the method of a run does not fit the backbone.
    """
    rows: list[tuple[str, float, float]] = []
    for run in runs:
        trained = context.fit(run)
        points = landscape(trained, context.backbone(run.origin.backbone), trained.data.dev)
        rows += [(run_text(run.description), it.alpha, it.loss) for it in points]
    across, header = "a (0: before training, 1: trained)", ("run", "a", "loss")
    drawing, _ = draw_lines(rows, across=across, up="dev loss at t0 + a (t1 - t0)")
    return Findings(name="landscape", header=header, rows=tuple(rows), drawing=drawing)


def _aligned(trained: TrainedTask, backbone: Backbone, *, num_tokens: int) -> list[Encoding]:
    """Return windows of dev examples with their alignments, as many as the sample may need."""
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
