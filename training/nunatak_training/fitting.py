"""Fitting: the parameters of one task are trained on a loaded backbone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nunatak_contract.enums import HeadKind, OnLong
from nunatak_contract.errors import NunatakError
from nunatak_contract.evidence import CalibrationRecord, MetricRecord, ReliabilityRecord
from nunatak_contract.heads import DEFAULT_THRESHOLD, NO_DEFAULT_LABEL, TANH_BLOCK
from nunatak_contract.manifest import MIN_WINDOW_TOKENS
from nunatak_contract.methods import HeadOnly, Method, TopK
from nunatak_model import (
    Backbone,
    BackboneConfig,
    BranchSpec,
    Encoding,
    TrunkStates,
    build_branch,
    default_head,
    initial_parameters,
    maths_of,
    stored_parameters,
)
from nunatak_training.data import ExampleSet, TaskData
from nunatak_training.data.examples import with_joined
from nunatak_training.data.splits import names_in
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.kinds import Metric, TaskKind
from nunatak_training.loop.checkpoint import SavedRun
from nunatak_training.loop.fit import EncodedSet, fit, logits_of, predict
from nunatak_training.loop.step import BatchLogits
from nunatak_training.objectives import OUTPUT_BIAS, OUTPUT_WEIGHT, Objective, objective_of
from nunatak_training.recipes import (
    TEACHER_TEMPERATURE,
    Precision,
    Recipe,
    changed_recipe,
    default_recipe,
)
from nunatak_training.regularizers import check_method
from nunatak_training.report import EpochResult, Report
from nunatak_training.run_settings import RunSettings
from nunatak_training.scoring.calibration import (
    MIN_EXAMPLES,
    JudgedLogits,
    best_thresholds,
    calibrated,
    reliability,
    rescaled,
)
from nunatak_training.tapt import adapt
from nunatak_training.trunk import JoinedStates, MemoryTrunkStore, TrunkStore

BFLOAT16_CAPABILITY = (8, 0)
"""Earlier CUDA devices have no units for bfloat16, and torch emulates them slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    values: Mapping[Metric, MetricRecord]
    reliability: ReliabilityRecord | None = None
    """The calibration error before and after the temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTask:
    """The parameters of one task after its best epoch, and the facts for its manifest."""

    spec: BranchSpec
    recipe: Recipe
    """With its metric filled in."""
    data: TaskData
    parameters: Mapping[str, Tensor]
    scores: Mapping[Metric, MetricRecord]
    """On the dev examples; the recipe's metric comes first."""
    confusion: Mapping[tuple[str, str], int] | None
    """The number of dev texts or words of each pair of true and predicted label."""
    num_long: tuple[int, int]
    """Train and dev examples with more tokens than the recipe's `max_length`."""
    best_epoch: int
    num_epochs: int
    """Planned. Fewer have run if patience ended the run."""
    history: tuple[EpochResult, ...]
    test: Scores | None = None
    calibration: CalibrationRecord | None = None
    """The temperature in the parameters, with its evidence."""
    thresholds: Mapping[str, float] = field(default_factory=dict[str, float])
    """The scores from which labels apply; other labels: 0.5."""

    def tested(self, backbone: Backbone) -> "TrainedTask":
        examples = self.data.test
        return self if examples is None else replace(self, test=evaluate(self, examples, backbone))


def fit_task(
    data: TaskData,
    recipe: Recipe,
    backbone: Backbone,
    *,
    report: Report,
    trunks: TrunkStore | None = None,
    checkpoint: SavedRun | None = None,
) -> TrainedTask:
    """Train a task. The backbone does not change.

    Runs with a common source of trunk states compute each trunk once, with the same bits.
    `checkpoint` holds the state of a killed run (see `held_checkpoint`); the caller discards it
    when the result is stored.
    """
    check_recipe(recipe, data, backbone)
    objective = _objective(data, recipe)
    metric = recipe.metric or objective.reported[0]
    recipe = changed_recipe(recipe, {"metric": metric.value})
    if metric not in objective.metrics:
        raise InvalidRecipeError(
            f"a {data.kind} task is scored by {', '.join(objective.metrics)}, got {metric!s}"
        )
    spec = branch_spec(recipe, backbone, kind=data.kind.head, num_outputs=len(data.labels))
    train, dev = (
        objective.encode(part, backbone.tokenizer, max_length=recipe.max_length)
        for part in (_learned(data.train, recipe, backbone), data.dev)
    )
    parameters = starting_parameters(
        spec, recipe, train.encodings, backbone, report=report, checkpoint=checkpoint
    )
    trunk = _trunk_states(trunks or MemoryTrunkStore(), backbone, spec, [train, dev], report=report)

    thresholds: Mapping[str, float] = {} if data.teacher is None else data.teacher.thresholds

    def dev_score(logits: Sequence[Float[Tensor, "*vectors outputs"]]) -> float:
        decided = _over_thresholds(logits, data.labels, thresholds)
        return objective.statistics(data.dev, dev, decided).value(metric)

    fitted = fit(
        parameters,
        branch_logits(backbone, spec, parameters, trunk),
        objective.loss,
        train=train,
        dev=dev,
        recipe=recipe,
        dev_score=dev_score,
        report=report,
        checkpoint=checkpoint,
    )
    best = fitted.best
    finished = stored_parameters(spec, objective.finished(best.parameters), backbone)
    logits = predict(branch_logits(backbone, spec, finished, trunk), dev.encodings)
    calibration: CalibrationRecord | None = None
    if recipe.calibrate:
        calibration = calibrated(
            _judged(data, data.dev, logits),
            data.labels,
            data_digest=data.dev.digest,
            seed=recipe.seed,
        )
        for name in finished.keys() & {OUTPUT_WEIGHT, OUTPUT_BIAS}:
            finished[name] = finished[name] / calibration.temperature
        logits = [row / calibration.temperature for row in logits]
        thresholds = (
            best_thresholds(calibration.curves)
            if recipe.thresholds is not None
            else rescaled(thresholds, calibration.temperature)
        )
    decided = _over_thresholds(logits, data.labels, thresholds)
    statistics = objective.statistics(data.dev, dev, decided)
    return TrainedTask(
        spec=spec,
        recipe=recipe,
        data=data,
        parameters=finished,
        scores=statistics.scores((metric, *objective.reported), data.dev, seed=recipe.seed),
        confusion=statistics.confusion,
        num_long=(train.num_long, dev.num_long),
        best_epoch=best.epoch,
        num_epochs=fitted.stepper.course.num_epochs,
        history=tuple(fitted.history),
        calibration=calibration,
        thresholds=thresholds,
    )


def _learned(train: ExampleSet, recipe: Recipe, backbone: Backbone) -> ExampleSet:
    default = recipe.default_label
    if not recipe.joined_share or default is None:
        return train
    texts, most = [it.text for it in train.examples], recipe.max_length
    sizes = [it.num_tokens for it in backbone.tokenizer.encode(texts, max_length=most)]
    return with_joined(
        train, recipe.joined_share, default=default, sizes=sizes, most=most, seed=recipe.seed
    )


def _objective(data: TaskData, recipe: Recipe) -> Objective:
    return objective_of(
        data, positive_label=recipe.positive_label, temperature=recipe.teacher_temperature
    )


def _judged(
    data: TaskData, examples: ExampleSet, logits: Sequence[Float[Tensor, " labels"]]
) -> JudgedLogits:
    own = [names_in(example.label) for example in examples.examples]
    return JudgedLogits(
        logits=torch.stack(list(logits)).double().cpu().numpy(),
        truth=np.array([[label in names for label in data.labels] for names in own]),
        is_single=data.kind is TaskKind.SINGLE_LABEL,
    )


def _over_thresholds(
    logits: Sequence[Float[Tensor, "*vectors outputs"]],
    labels: Sequence[str],
    thresholds: Mapping[str, float],
) -> Sequence[Float[Tensor, "*vectors outputs"]]:
    """So that a label applies from 0 up."""
    if not thresholds:
        return logits
    scores = [thresholds.get(label, DEFAULT_THRESHOLD) for label in labels]
    needed = torch.tensor(scores, dtype=torch.float64).logit()
    return [row.double().cpu() - needed for row in logits]


def starting_parameters(
    spec: BranchSpec,
    recipe: Recipe,
    texts: Sequence[Encoding],
    backbone: Backbone,
    *,
    report: Report,
    checkpoint: SavedRun | None = None,
) -> dict[str, Tensor]:
    """From the seed, and pretrained on the train texts if the recipe says so.

    Pretraining has its own checkpoint next to the run's.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    parameters = initial_parameters(spec, backbone, generator=generator)
    if recipe.tapt is not None:
        pretraining = None if checkpoint is None else checkpoint.part("tapt")
        adapt(
            parameters, texts, recipe.tapt, recipe, backbone, report=report, checkpoint=pretraining
        )
    return parameters


def branch_spec(
    recipe: Recipe, backbone: Backbone, *, kind: HeadKind, num_outputs: int
) -> BranchSpec:
    """`num_outputs` is for heads with labels; the kind fixes the outputs of all other heads."""
    head = default_head(backbone, kind=kind, num_labels=kind.fixed_outputs or num_outputs)
    if not kind.reads_tokens:
        dense = head.dense if recipe.dense is None else recipe.dense
        head = replace(
            head,
            pooling=recipe.pooling or head.pooling,
            dense=dense,
            block=head.block if dense else TANH_BLOCK,
            # A regression adds the mean of its values to the logit.
            bias=head.bias or (num_outputs == 1 and kind.fixed_outputs is None),
            padding_id=head.padding_id if recipe.pooling in {None, head.pooling} else None,
        )
    return BranchSpec(method=recipe.method, head=head)


def branch_logits(
    backbone: Backbone,
    spec: BranchSpec,
    parameters: Mapping[str, Tensor],
    trunk: TrunkStates | None = None,
) -> BatchLogits:
    return logits_of(backbone, build_branch(spec, backbone.config, parameters), trunk)


def _trunk_states(
    store: TrunkStore,
    backbone: Backbone,
    spec: BranchSpec,
    sets: Sequence[EncodedSet],
    *,
    report: Report,
) -> TrunkStates | None:
    depth = spec.split_depth(backbone.config)
    if not depth:
        return None
    # Separate sets, because tasks and runs may share dev examples but not train examples.
    parts = [
        store.states(backbone, part.encodings, depth=depth, progress=report.prepared)
        for part in sets
    ]
    return JoinedStates(parts)


def check_recipe(recipe: Recipe, data: TaskData, backbone: Backbone) -> None:
    check_method(recipe.regularizer, recipe.method)
    check_length(recipe, backbone)
    _check_precision(recipe, backbone.device)
    problems = _label_problems(recipe, data), _joining_problems(recipe, data)
    problem = next(chain(*problems, _reading_problems(recipe, data.kind)), None)
    if problem is not None:
        raise InvalidRecipeError(problem)


def check_length(recipe: Recipe, backbone: Backbone) -> None:
    if recipe.max_length > backbone.config.max_tokens:
        raise InvalidRecipeError(
            f"max_length must be at most {backbone.config.max_tokens} tokens for backbone "
            f"{backbone.name!r}, got {recipe.max_length}"
        )


def _check_precision(recipe: Recipe, device: torch.device) -> None:
    if recipe.precision is not Precision.BFLOAT16 or device.type != "cuda":
        return
    found = torch.cuda.get_device_capability(device)
    if found < BFLOAT16_CAPABILITY:
        needed, got = (".".join(map(str, it)) for it in (BFLOAT16_CAPABILITY, found))
        raise InvalidRecipeError(
            f"precision bfloat16 needs a GPU of compute capability {needed} or higher, got {got}; "
            "leave precision out"
        )


def _label_problems(recipe: Recipe, data: TaskData) -> Iterator[str]:
    kind, labels = data.kind, ", ".join(map(repr, data.labels))
    positive, default = recipe.positive_label, recipe.default_label
    if positive is not None and positive not in data.labels:
        yield f"positive_label must be one of {labels}, got {positive!r}"
    is_softened = data.train.is_taught and kind is not TaskKind.REGRESSION
    if recipe.teacher_temperature != TEACHER_TEMPERATURE and not is_softened:
        yield "teacher_temperature needs a teacher (nunatak adopt) of labels, not of values"
    if default is not None and kind is not TaskKind.SINGLE_LABEL:
        yield f"a {kind} task has no default label, got {default!r}; leave it out"
    if default not in {None, NO_DEFAULT_LABEL, *data.labels}:
        yield f"default_label must be {NO_DEFAULT_LABEL} or one of {labels}, got {default!r}"
    if recipe.thresholds is not None and kind is not TaskKind.MULTI_LABEL:
        needs = f"thresholds {recipe.thresholds!r} needs a multi-label task"
        yield f"{needs}, got {kind}; leave thresholds out"
    if recipe.calibrate and kind not in {TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL}:
        needs = "calibrate needs a task that classifies whole texts (single-label or multi-label)"
        yield f"{needs}, got {kind}; leave calibrate out"
    if recipe.calibrate and len(data.dev) < MIN_EXAMPLES:
        needs = f"calibrate needs at least {MIN_EXAMPLES} dev examples, got {len(data.dev)}"
        yield f"{needs}; give more dev examples, or leave calibrate out"


def _joining_problems(recipe: Recipe, data: TaskData) -> Iterator[str]:
    if not recipe.joined_share:
        return
    if recipe.default_label not in data.labels or data.kind is not TaskKind.SINGLE_LABEL:
        needs = "joined_share needs a single-label task whose default_label is one of its labels"
        yield f"{needs}, got {recipe.default_label!r}"
    if data.train.is_taught or any(it.text_pair is not None for it in data.train.examples):
        yield "joined_share needs single texts with labels of their own; leave it out"


def _reading_problems(recipe: Recipe, kind: TaskKind) -> Iterator[str]:
    if not kind.head.reads_tokens:
        return
    if recipe.on_long not in {None, OnLong.WINDOWS}:
        yield f"a {kind} task reads long texts as windows, got on_long {recipe.on_long}"
    if recipe.pooling is not None or recipe.dense:
        yield f"a {kind} task reads every token and has no pooling and no dense layer"
    if recipe.max_length < MIN_WINDOW_TOKENS:
        least = f"max_length of a {kind} task must be at least {MIN_WINDOW_TOKENS} tokens"
        yield f"{least}, got {recipe.max_length}"


def evaluate(
    trained: TrainedTask,
    examples: ExampleSet,
    backbone: Backbone,
    metrics: Sequence[Metric] | None = None,
) -> Scores:
    """Score the task on examples, by these metrics or by those of its dev scores."""
    recipe = trained.recipe
    objective = _objective(trained.data, recipe)
    encoded = objective.encode(examples, backbone.tokenizer, max_length=recipe.max_length)
    logits = predict(branch_logits(backbone, trained.spec, trained.parameters), encoded.encodings)
    decided = _over_thresholds(logits, trained.data.labels, trained.thresholds)
    statistics = objective.statistics(examples, encoded, decided)
    found: ReliabilityRecord | None = None
    if trained.calibration is not None:
        # The parameters contain the temperature, so the logits before it are larger by this factor.
        found = reliability(
            _judged(trained.data, examples, logits),
            before=1 / trained.calibration.temperature,
            after=1.0,
            data_digest=examples.digest,
        )
    values = statistics.scores(metrics or trained.scores, examples, seed=recipe.seed)
    return Scores(values=values, reliability=found)


def method_on(settings: RunSettings, config: BackboneConfig) -> Method:
    if settings.frozen is not None:
        return _above(settings.frozen, config)
    maths_of(settings.method).check(config)
    return settings.method


def recipe_on(settings: RunSettings, backbone: Backbone) -> Recipe:
    """With the backbone's own name and never a path."""
    method = method_on(settings, backbone.config)
    return default_recipe(method, backbone=backbone.name, changes=settings.changes)


def _above(num_frozen: int, config: BackboneConfig) -> TopK | HeadOnly:
    if num_frozen > config.num_layers:
        raise NunatakError(
            "invalid_method",
            problem=f"frozen layers must be in [0, {config.num_layers}], got {num_frozen} "
            f"(the backbone has {config.num_layers} layers)",
        )
    if num_frozen == config.num_layers:
        return HeadOnly()
    return TopK(num_layers=config.num_layers - num_frozen)
