"""Findings from the runs of a sweep, which are trained here; no weights are kept.

He et al. 2021, "On the Effectiveness of Adapter-based Tuning" (arXiv:2106.03164).

Similarity (sec. 2.2): the same tokens go through a model before and after training. Each gives a
matrix of the cosine similarities of all pairs of tokens. The result is Pearson's correlation of the
upper triangles of both matrices. Special tokens are skipped, and packed inputs have no
padding. A result of 1 means that training has not changed the relations between tokens.

Landscape (sec. 5 and figure 6, after Li et al. 2018): the loss along the line through the
parameters, f(a) = L(t0 + a (t1 - t0)) for 20 values of a in [-2, 2], and at 0 (before training) and
1 (trained), which are not among the 20. A wide basin around 1 is typical of a model that
generalises.

Axes: tokens = sampled tokens, width = hidden width.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from benchmarks.papers.sweep_findings import Findings, draw_lines
from nunatak_contract.errors import NunatakError
from nunatak_model import Backbone, Branch, Encoding, build_branch
from nunatak_model.architectures import architecture_of
from nunatak_model.layer import TokenSpan, mix_layer
from nunatak_training.data import ExampleSet
from nunatak_training.fitting import TrainedTask, branch_logits, starting_parameters
from nunatak_training.kinds import TaskKind
from nunatak_training.loop.fit import predict
from nunatak_training.objectives import objective_of
from nunatak_training.objectives.base import stacked
from nunatak_training.report import Report
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.reporting import run_text, whole_numbers
from nunatak_training.sweeps.running import RunContext

NUM_TOKENS = 5000
"""The number of tokens that the paper samples from the dev set (figure 2)."""


def similarity(
    before: Float[Tensor, "tokens width"], after: Float[Tensor, "tokens width"]
) -> float:
    """Return Pearson's correlation of the pairwise cosine similarities; the widths may differ.

    Semantics:
        pairs = [(i, j) for i in range(tokens) for j in range(i + 1, tokens)]
        pearson([cos(before[i], before[j]) for i, j in pairs],
                [cos(after[i], after[j]) for i, j in pairs])
    """
    return torch.corrcoef(torch.stack([_cosines(before), _cosines(after)]))[0, 1].item()


def layer_similarities(
    backbone: Backbone,
    branch: Branch,
    inputs: Sequence[Encoding],
    *,
    num_tokens: int = NUM_TOKENS,
    seed: int = 0,
) -> tuple[float, ...]:
    """Compare a branch with its backbone after each layer, on tokens drawn from the inputs."""
    chosen = sampled_tokens(inputs, num_tokens=num_tokens, seed=seed)
    before = hidden_states(backbone, inputs)
    after = hidden_states(backbone, inputs, branch=branch)
    return tuple(
        similarity(first[chosen], second[chosen])
        for first, second in zip(before, after, strict=True)
    )


def sampled_tokens(
    inputs: Sequence[Encoding], *, num_tokens: int, seed: int
) -> Int[Tensor, " tokens"]:
    """Return the positions of at most `num_tokens` text tokens in the packed inputs, in order.

    Fewer than three tokens have no correlation.
    """
    of_text = [
        alignment.text_ids[position] is not None
        for alignment in (encoding.alignment for encoding in inputs)
        if alignment is not None
        for position in range(len(alignment.text_ids))
    ]
    positions = [position for position, is_text in enumerate(of_text) if is_text]
    if len(positions) < 3:
        raise NunatakError(
            "too_few_examples",
            where="rsa",
            problem=f"expected texts of at least 3 tokens together, got {len(positions)}",
        )
    drawn = random.Random(seed).sample(positions, min(num_tokens, len(positions)))
    return torch.tensor(sorted(drawn))


def _cosines(states: Float[Tensor, "tokens width"]) -> Float[Tensor, " pairs"]:
    unit = torch.nn.functional.normalize(states.double(), dim=1)
    above = torch.triu_indices(len(states), len(states), offset=1)
    return (unit @ unit.T)[above[0], above[1]]


def hidden_states(
    backbone: Backbone, inputs: Sequence[Encoding], *, branch: Branch | None = None
) -> tuple[Float[Tensor, "tokens width"], ...]:
    """Return the result of each layer, from the lowest up: of a branch, or of the backbone itself.

    Answers come from `nunatak_model.forward`. The states of all
    inputs lie one after another. The branch's head reads the result of the last layer.
    """
    config = backbone.config
    architecture = architecture_of(config)
    own = None if branch is None else branch.embeddings
    states = list[Tensor]()
    with torch.inference_mode():
        hidden = architecture.embed(list(inputs), own or backbone.embeddings, config)
        everything = TokenSpan(tokens=slice(0, len(hidden)))
        lengths = tuple(encoding.num_tokens for encoding in inputs)
        attention = backbone.ops.attention(lengths, hidden.device)
        run_layer = architecture.plan_layers(attention, config)
        for index in range(config.num_layers):
            override = None if branch is None else branch.layers.get(index)
            layer = mix_layer(
                backbone.layer(index),
                [] if override is None else [(everything, override)],
                index=index,
                num_tokens=len(hidden),
                relative=backbone.embeddings.relative,
                kernels=backbone.ops.tasks,
            )
            hidden = run_layer(hidden, layer)
            states.append(hidden)
    return tuple(states)


NUM_POINTS, FIRST, LAST = 20, -2.0, 2.0


class LinePoint(NamedTuple):
    """The loss at one point of the line."""

    alpha: float
    loss: float


def line_losses(
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    loss_of: Callable[[Mapping[str, Tensor]], float],
    *,
    num_points: int = NUM_POINTS,
) -> tuple[LinePoint, ...]:
    """Evaluate `loss_of` at evenly spaced points from `FIRST` to `LAST`, and at both models."""
    step = (LAST - FIRST) / (num_points - 1)
    alphas = sorted({0.0, 1.0, *(FIRST + step * point for point in range(num_points))})
    return tuple(
        LinePoint(
            alpha=alpha,
            loss=loss_of({name: start[name] + alpha * (end[name] - start[name]) for name in end}),
        )
        for alpha in alphas
    )


def landscape(
    trained: TrainedTask, backbone: Backbone, examples: ExampleSet
) -> tuple[LinePoint, ...]:
    """Return the loss of examples along the line of a trained task, head and adapters included.

    The recipe gives the parameters before training; if the recipe says so, they are pretrained
    again. The loss of a regression is the squared error in the units of the values. The loss in
    training differs from it by a factor.
    """
    recipe = trained.recipe
    objective = objective_of(trained.data, positive_label=recipe.positive_label)
    texts, encoded = (
        objective.encode(part, backbone.tokenizer, max_length=recipe.max_length)
        for part in (trained.data.train, examples)
    )
    start = objective.finished(
        starting_parameters(trained.spec, recipe, texts.encodings, backbone, report=Report())
    )

    def loss_of(parameters: Mapping[str, Tensor]) -> float:
        logits = predict(branch_logits(backbone, trained.spec, parameters), encoded.encodings)
        if trained.data.kind is TaskKind.REGRESSION:
            return _squared_error(logits, examples.labels(float))
        return objective.loss(logits, encoded.targets).item()

    return line_losses(start, trained.parameters, loss_of)


def _squared_error(logits: Sequence[Tensor], values: Sequence[float]) -> float:
    predicted, right = stacked(logits, [torch.tensor([value]) for value in values])
    return functional.mse_loss(predicted, right).item()


SURPLUS = 2
"""Texts are read until they have this multiple of the number of sampled tokens."""


def analyze_rsa(
    runs: Sequence[Run], context: RunContext, *, num_tokens: int = NUM_TOKENS
) -> Findings:
    """Measure the similarity to the backbone after each layer, on tokens of the dev examples."""
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
    """Measure the loss of the dev examples on the line from the start to the trained task."""
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
