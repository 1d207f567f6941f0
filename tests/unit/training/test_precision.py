# ruff: noqa: ANN401 - torch leaves the types of these hooks open
"""Training in bfloat16: rounded products in the steps, and float32 everywhere else."""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from math import ceil
from typing import Any

import pytest
import torch
from pydantic import JsonValue
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from doubles.backbones import FAMILIES, Family, tiny_backbone
from doubles.examples import SHORT_TRAINING, toy_data
from doubles.fake_cuda import fake_cuda, on_fake_device, trusting
from doubles.tasks import EVERY_METHOD
from nunatak_contract.enums import LinearMap, Pooling
from nunatak_contract.methods import QUERY_AND_VALUE, Lora, Method, TopK
from nunatak_model import Backbone, parameter_shapes
from nunatak_training.data import TaskData
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import (
    TrainedTask,
    branch_logits,
    branch_spec,
    check_recipe,
    fit_task,
    starting_parameters,
)
from nunatak_training.loop.fit import EncodedSet, predict
from nunatak_training.loop.step import Stepper, course_of
from nunatak_training.objectives import objective_of
from nunatak_training.recipes import Recipe, default_recipe
from nunatak_training.report import Report
from nunatak_training.trunk import MemoryTrunkStore

PRODUCTS = {"mm", "addmm", "addmm_"}
"""The products of linear maps; those of attention are torch's own choice."""
DATA = toy_data()
ALL_MAPS = Lora(rank=4, alpha=16.0, targets=tuple(LinearMap))
METHODS = [ALL_MAPS if it.kind == "lora" else it for it in EVERY_METHOD]


class Products(TorchDispatchMode):
    """Counts the products of linear maps by the number formats of their factors."""

    def __init__(self) -> None:
        super().__init__()
        self.formats = Counter[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            self.formats.update(factor.dtype for factor in args[-2:])
        return func(*args, **(kwargs or {}))


def quick_recipe(method: Method, **changes: JsonValue) -> Recipe:
    return default_recipe(method, changes={**SHORT_TRAINING, "epochs": 6, **changes})


def trained(method: Method, backbone: Backbone, **changes: JsonValue) -> TrainedTask:
    return fit_task(DATA, quick_recipe(method, **changes), backbone, report=Report())


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=3, pooling=Pooling.MEAN)


def step_on(
    backbone: Backbone, method: Method, precision: str
) -> tuple[Counter[torch.dtype], dict[str, Tensor]]:
    """Take one step; return the formats of its products, and the parameters with gradients."""
    recipe = default_recipe(method, changes={"precision": precision})
    objective = objective_of(DATA)
    train = objective.encode(DATA.train, backbone.tokenizer, max_length=32)
    spec = branch_spec(recipe, backbone, kind=DATA.kind.head, num_outputs=len(DATA.labels))
    parameters = starting_parameters(spec, recipe, [], backbone, report=Report())
    logits = branch_logits(backbone, spec, parameters)
    stepper = Stepper(
        parameters,
        recipe,
        course_of(recipe, steps_per_epoch=ceil(len(train.encodings) / recipe.batch_size)),
    )
    with Products() as seen:
        stepper.step(
            lambda: objective.loss(
                logits(train.encodings[:4], dropout=recipe.dropout), train.targets[:4]
            )
        )
    return seen.formats, parameters


@pytest.mark.parametrize(
    ("family", "method", "dtype"),
    [
        *(("bert", it, dtype) for it in METHODS for dtype in (torch.bfloat16, torch.float32)),
        *((it, ALL_MAPS, torch.bfloat16) for it in FAMILIES if it != "bert"),
    ],
    ids=lambda it: str(getattr(it, "kind", it)),
)
def test_every_product_of_a_step_has_the_precision_and_every_weight_stays_float32(
    family: Family, method: Method, dtype: torch.dtype
) -> None:
    precision = str(dtype).removeprefix("torch.")
    formats, parameters = step_on(tiny_backbone(num_layers=2, family=family), method, precision)

    assert set(formats) == {dtype}
    gradients = [it.grad for it in parameters.values() if it.grad is not None]
    assert len(gradients) == len(parameters)
    assert {it.dtype for it in (*parameters.values(), *gradients)} == {torch.float32}


def test_bfloat16_learns_what_float32_learns_and_returns_float32(backbone: Backbone) -> None:
    method = Lora(rank=4, alpha=16.0, targets=QUERY_AND_VALUE)
    exact, rounded = (trained(method, backbone, precision=it) for it in ("float32", "bfloat16"))

    score, rounded_score = (next(iter(it.scores.values())).value for it in (exact, rounded))
    # One half is chance; 1 of the 16 dev examples may differ.
    assert score >= 0.8
    assert abs(rounded_score - score) <= 1 / 16
    assert {it.dtype for it in rounded.parameters.values()} == {torch.float32}
    shapes = parameter_shapes(rounded.spec, backbone.config)
    assert {name: tuple(it.shape) for name, it in rounded.parameters.items()} == shapes
    assert any(not torch.equal(it, exact.parameters[n]) for n, it in rounded.parameters.items())


def test_pretraining_takes_its_steps_in_bfloat16_too(backbone: Backbone) -> None:
    recipe = quick_recipe(TopK(num_layers=1), precision="bfloat16", tapt={"epochs": 1})
    spec = branch_spec(recipe, backbone, kind=DATA.kind.head, num_outputs=len(DATA.labels))
    texts = objective_of(DATA).encode(DATA.train, backbone.tokenizer, max_length=32).encodings

    with Products() as seen:
        found = starting_parameters(spec, recipe, texts, backbone, report=Report())

    assert set(seen.formats) == {torch.bfloat16}
    assert {it.dtype for it in found.values()} == {torch.float32}


def test_states_of_rounded_steps_never_reach_the_scores(backbone: Backbone) -> None:
    # The dev texts are the train texts, and the states of a set are one byte too many to be held
    # whole. So states of batches are kept, which steps and scores compute in turn.
    data = TaskData(name="same", train=DATA.train, dev=DATA.train, labels=DATA.labels)
    states = encoded(data, backbone)
    num_tokens = sum(it.num_tokens for it in set(states.encodings))
    size = num_tokens * backbone.config.hidden_width * backbone.dtype.itemsize
    recipe = quick_recipe(TopK(num_layers=1), precision="bfloat16", epochs=2)

    store = MemoryTrunkStore(max_bytes=size - 1)
    result = fit_task(data, recipe, backbone, report=Report(), trunks=store)

    assert kept_loss(result) == pytest.approx(loss_of(result, backbone), abs=1e-6)


def encoded(data: TaskData, backbone: Backbone) -> EncodedSet:
    return objective_of(data).encode(data.dev, backbone.tokenizer, max_length=32)


def kept_loss(result: TrainedTask) -> float:
    """The dev loss of the kept epoch, as the run measured it."""
    return next(it.dev_loss for it in result.history if it.epoch == result.best_epoch)


def loss_of(result: TrainedTask, backbone: Backbone) -> float:
    """The dev loss of the returned parameters, in float32 and without held states."""
    dev = encoded(result.data, backbone)
    logits = predict(branch_logits(backbone, result.spec, result.parameters), dev.encodings)
    return objective_of(result.data).loss(logits, dev.targets).item()


@contextmanager
def gpu(capability: tuple[int, int]) -> Generator[Callable[[Backbone], Backbone]]:
    """A CUDA device that is not there, on which torch has autocast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
        with fake_cuda(capability):
            yield lambda backbone: on_fake_device(backbone, dtype=torch.float32)


@pytest.mark.parametrize(
    ("capability", "precision", "is_refused"),
    [
        ((7, 5), "bfloat16", True),
        ((7, 0), "bfloat16", True),
        ((8, 0), "bfloat16", False),
        ((7, 5), "float32", False),
    ],
)
def test_bfloat16_is_refused_on_a_device_without_it(
    capability: tuple[int, int], precision: str, backbone: Backbone, *, is_refused: bool
) -> None:
    recipe = quick_recipe(TopK(num_layers=1), precision=precision)
    refusal = pytest.raises(InvalidRecipeError, match=r"8\.0 or higher, got")

    with gpu(capability) as moved, refusal if is_refused else nullcontext():
        check_recipe(recipe, DATA, moved(backbone))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_a_gpu_rounds_every_product_too(method: Method, backbone: Backbone) -> None:
    recipe = quick_recipe(method, precision="bfloat16")
    spec = branch_spec(recipe, backbone, kind=DATA.kind.head, num_outputs=len(DATA.labels))
    texts = objective_of(DATA).encode(DATA.dev, backbone.tokenizer, max_length=32).encodings
    # Tensors that are not there have no gradients, so only the forward pass runs.
    with gpu((8, 0)) as moved, torch.no_grad(), Products() as seen:
        there = moved(backbone)
        shapes = parameter_shapes(spec, there.config)
        parameters = {name: torch.empty(it, device=there.device) for name, it in shapes.items()}
        with trusting():
            logits = branch_logits(there, spec, parameters)
        with torch.autocast("cuda", torch.bfloat16):
            found = logits(texts, dropout=0.0)

    assert set(seen.formats) == {torch.bfloat16}
    assert {it.dtype for it in found} == {torch.float32}
