"""From examples to trained parameters of one task, on a loaded backbone."""

# torch types some of its methods partly.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_artifact import method_of
from nunatak_model import (
    TANH_BLOCK,
    Backbone,
    BranchSpec,
    Encoding,
    HeadKind,
    Row,
    TrunkCache,
    TrunkStates,
    build_branch,
    default_head,
    forward,
    initial_parameters,
)
from nunatak_training.data import ExampleSet, TaskData
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.loop import BatchLogits, EncodedSet, fit, predict
from nunatak_training.metrics import Metric, confusion, score
from nunatak_training.recipes import Recipe
from nunatak_training.report import EpochResult, Report

MAX_TRUNK_BYTES = 2 * 1024**3
"""For the trunk states of a data set, which are then computed once and not in every epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTask:
    """The parameters of one task after its best epoch, and all that a manifest says of them."""

    spec: BranchSpec
    recipe: Recipe
    data: TaskData
    parameters: Mapping[str, Tensor]
    scores: Mapping[Metric, float]
    """On the dev examples; the recipe's metric comes first."""
    confusion: Mapping[tuple[str, str], int]
    """On the dev examples: how often each pair of true and predicted label occurred."""
    best_epoch: int
    history: tuple[EpochResult, ...]


def fit_task(data: TaskData, recipe: Recipe, backbone: Backbone, *, report: Report) -> TrainedTask:
    """Train a task; the backbone is read and never written.

    Raises:
        InvalidRecipeError: the recipe does not fit the data or the backbone.
        ModelError: the method does not fit the backbone.
        TrainingDivergedError: the loss stopped being a number.
    """
    _check_recipe(recipe, data, backbone)
    spec = branch_spec(recipe, backbone, num_labels=len(data.labels))
    generator = torch.Generator().manual_seed(recipe.seed)
    parameters = initial_parameters(spec, backbone, generator=generator)
    train, dev = (_encoded(part, data, recipe, backbone) for part in (data.train, data.dev))
    trunk = TrunkCache(max_bytes=MAX_TRUNK_BYTES)

    def dev_score(logits: Float[Tensor, "examples labels"]) -> float:
        return _score(recipe.metric, logits, data, recipe)

    fitted = fit(
        parameters,
        branch_logits(backbone, spec, parameters, trunk),
        train=train,
        dev=dev,
        recipe=recipe,
        dev_score=dev_score,
        report=report,
    )
    logits = predict(branch_logits(backbone, spec, fitted.parameters, trunk), dev.encodings)
    metrics = dict.fromkeys((recipe.metric, Metric.ACCURACY))
    return TrainedTask(
        spec=spec,
        recipe=recipe,
        data=data,
        parameters=fitted.parameters,
        scores={metric: _score(metric, logits, data, recipe) for metric in metrics},
        confusion=confusion(_expected(data), _predicted(logits, data)),
        best_epoch=fitted.best_epoch,
        history=fitted.history,
    )


def branch_spec(recipe: Recipe, backbone: Backbone, *, num_labels: int) -> BranchSpec:
    """Return the branch that a recipe asks for, with what it leaves open as the backbone has it."""
    usual = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=num_labels)
    dense = usual.dense if recipe.dense is None else recipe.dense
    head = replace(
        usual,
        pooling=recipe.pooling or usual.pooling,
        dense=dense,
        block=usual.block if dense else TANH_BLOCK,
    )
    return BranchSpec(method=method_of(recipe.method), head=head)


def branch_logits(
    backbone: Backbone,
    spec: BranchSpec,
    parameters: Mapping[str, Tensor],
    trunk: TrunkStates | None = None,
) -> BatchLogits:
    """Return the function from encodings to logits that these parameters define.

    It refers to the tensors, so it follows them when they are trained. With `trunk` it starts each
    encoding from its state there, where there is one.

    Raises:
        ModelError: the parameters are not those of `spec`.
    """
    branch = build_branch(spec, backbone.config, parameters)

    def logits(
        encodings: Sequence[Encoding], *, dropout: float
    ) -> Float[Tensor, "examples labels"]:
        rows = [Row(encoding=encoding, branch=branch) for encoding in encodings]
        return torch.stack(forward(backbone, rows, dropout=dropout, trunk=trunk))

    return logits


def _check_recipe(recipe: Recipe, data: TaskData, backbone: Backbone) -> None:
    if recipe.max_length > backbone.config.max_tokens:
        raise InvalidRecipeError(
            f"max_length must be at most {backbone.config.max_tokens} tokens for backbone "
            f"{backbone.name!r}, got {recipe.max_length}"
        )
    if recipe.positive_label is not None and recipe.positive_label not in data.labels:
        raise InvalidRecipeError(
            f"positive_label must be one of {', '.join(map(repr, data.labels))}, "
            f"got {recipe.positive_label!r}"
        )


def _encoded(
    examples: ExampleSet, data: TaskData, recipe: Recipe, backbone: Backbone
) -> EncodedSet:
    index_of = {label: index for index, label in enumerate(data.labels)}
    encodings = backbone.tokenizer.encode(
        [example.model_input for example in examples.examples], max_length=recipe.max_length
    )
    targets = [index_of[example.label] for example in examples.examples]
    return EncodedSet(
        encodings=tuple(encodings), targets=torch.tensor(targets, device=backbone.device)
    )


def _score(
    metric: Metric, logits: Float[Tensor, "examples labels"], data: TaskData, recipe: Recipe
) -> float:
    return score(
        metric, _expected(data), _predicted(logits, data), positive_label=recipe.positive_label
    )


def _expected(data: TaskData) -> list[str]:
    return [example.label for example in data.dev.examples]


def _predicted(logits: Float[Tensor, "examples labels"], data: TaskData) -> list[str]:
    indices = cast("list[int]", logits.argmax(dim=1).tolist())
    return [data.labels[index] for index in indices]
