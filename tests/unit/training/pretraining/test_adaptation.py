import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.examples import RecordingReport, toy_data
from nunatak_model import (
    Backbone,
    Bottleneck,
    BranchSpec,
    Full,
    HeadKind,
    HeadOnly,
    Lora,
    Method,
    TopK,
    default_head,
    initial_parameters,
)
from nunatak_training import InvalidRecipeError, Recipe, SilentReport, default_recipe, fit_task
from nunatak_training.pretraining.adaptation import adapt
from nunatak_training.pretraining.settings import TaptSettings

METHODS = [TopK(num_layers=1), Bottleneck(size=8), Lora(rank=4), Full()]


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=2)


def recipe_of(method: Method) -> Recipe:
    changes = {"epochs": 1, "batch_size": 8, "max_length": 32, "learning_rate": 5e-3}
    return default_recipe(method, changes=changes)


def adapted(
    method: Method, backbone: Backbone, report: RecordingReport
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters of a task before and after."""
    head = default_head(backbone, kind=HeadKind.SEQUENCE_CLASSIFICATION, num_labels=2)
    generator = torch.Generator().manual_seed(0)
    parameters = initial_parameters(
        BranchSpec(method=method, head=head), backbone, generator=generator
    )
    before = {name: tensor.clone() for name, tensor in parameters.items()}
    texts = [example.model_input for example in toy_data().train.examples]
    encodings = backbone.tokenizer.encode(texts, max_length=32)
    settings = TaptSettings(epochs=6)
    adapt(parameters, encodings, settings, recipe_of(method), backbone, report=report)
    return before, parameters


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_all_that_the_method_owns_moves_and_nothing_else(
    method: Method, backbone: Backbone
) -> None:
    frozen = {name: tensor.clone() for name, tensor in backbone.parameters.items()}

    before, after = adapted(method, backbone, RecordingReport())

    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {name for name in before if name.startswith("head.")}
    assert all(torch.equal(tensor, backbone.parameters[name]) for name, tensor in frozen.items())
    assert not any(tensor.requires_grad for tensor in after.values())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_hidden_tokens_become_less_surprising(method: Method, backbone: Backbone) -> None:
    report = RecordingReport()

    adapted(method, backbone, report)

    assert sum(report.losses[-8:]) < 0.8 * sum(report.losses[:8])


def test_tuning_starts_from_what_was_adapted(backbone: Backbone) -> None:
    recipe = recipe_of(Bottleneck(size=8)).model_copy(update={"tapt": TaptSettings(epochs=2)})

    plain = fit_task(toy_data(), recipe_of(Bottleneck(size=8)), backbone, report=SilentReport())
    first, again = (fit_task(toy_data(), recipe, backbone, report=SilentReport()) for _ in range(2))

    assert all(torch.equal(first.parameters[name], it) for name, it in again.parameters.items())
    assert any(not torch.equal(first.parameters[name], it) for name, it in plain.parameters.items())
    assert first.recipe.digest != plain.recipe.digest


def test_a_head_alone_has_nothing_to_adapt() -> None:
    with pytest.raises(InvalidRecipeError, match="'head' has none"):
        default_recipe(HeadOnly(), changes={"tapt": {"epochs": 1}})
