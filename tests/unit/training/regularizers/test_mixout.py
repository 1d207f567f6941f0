"""Regularizers in recipes and in the loop; mixout against its definition, entry by entry."""

import math

import pytest
import torch
from pydantic import JsonValue
from torch import Tensor

from doubles.examples import toy_data
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, tensors_to_bytes
from nunatak_training.errors import InvalidRecipeError
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.recipes import Recipe, RegularizerName, default_recipe
from nunatak_training.regularizers import Mixout, build_regularizer, random_source
from nunatak_training.report import Report

RATE = 0.9
PRETRAINED, OWN = 1.0, 3.0
MIXED = ("layers.0.qkv.weight",)
NOT_MIXED = ("embeddings.word", "layers.0.qkv.bias", "head.output.weight")
NAMES = list(RegularizerName)
QUICK: dict[str, JsonValue] = {"epochs": 2, "min_steps": 0, "batch_size": 16, "max_length": 32}


def tuned() -> dict[str, Tensor]:
    tensors = {
        name: torch.full((100, 100), PRETRAINED, requires_grad=True)
        for name in (*MIXED, *NOT_MIXED)
        if not name.endswith("bias")
    }
    tensors["layers.0.qkv.bias"] = torch.full((100,), PRETRAINED, requires_grad=True)
    return tensors


def mixed_out(tensors: dict[str, Tensor]) -> Mixout:
    """A mixout of weights that training has already moved."""
    mixout = Mixout(tensors, RATE, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(OWN)
    return mixout


def recipe_of(name: RegularizerName, method: Method, **changes: JsonValue) -> Recipe:
    return default_recipe(method, changes={**QUICK, "regularizer": {"name": name}, **changes})


def trained(recipe: Recipe, backbone: Backbone) -> TrainedTask:
    return fit_task(toy_data(num_train=32), recipe, backbone, report=Report())


def test_weights_are_pretrained_or_scaled_so_that_their_mean_stays() -> None:
    tensors = tuned()

    mixed_out(tensors).before_forward()

    mixed = tensors["layers.0.qkv.weight"].detach()
    away = PRETRAINED + (OWN - PRETRAINED) / (1 - RATE)
    assert sorted(mixed.unique().tolist()) == pytest.approx([PRETRAINED, away])
    deviation = math.sqrt(RATE * (1 - RATE) / mixed.numel())
    share = (mixed == PRETRAINED).float().mean().item()
    assert share == pytest.approx(RATE, abs=5 * deviation)
    assert mixed.mean().item() == pytest.approx(OWN, abs=5 * deviation * (away - PRETRAINED))


def test_embeddings_biases_and_head_are_not_mixed() -> None:
    tensors = tuned()

    mixed_out(tensors).before_forward()

    assert all((tensors[name] == OWN).all() for name in NOT_MIXED)


def test_weights_come_back_and_gradients_match_the_formula() -> None:
    tensors = tuned()
    mixout = mixed_out(tensors)
    weight = tensors["layers.0.qkv.weight"]

    mixout.before_forward()
    mask = (weight.detach() - PRETRAINED) / (OWN - PRETRAINED)
    (weight**2).sum().backward()
    mixout.after_backward()

    own = torch.full_like(weight, OWN, requires_grad=True)
    ((PRETRAINED + mask * (own - PRETRAINED)) ** 2).sum().backward()
    assert torch.equal(weight, torch.full_like(weight, OWN))
    torch.testing.assert_close(weight.grad, own.grad)


def test_every_forward_pass_has_a_fresh_mixture() -> None:
    tensors = tuned()
    mixout = mixed_out(tensors)
    mixtures: list[Tensor] = []
    for _ in range(2):
        mixout.before_forward()
        mixtures.append(tensors["layers.0.qkv.weight"].detach().clone())
        mixout.after_backward()

    assert not torch.equal(mixtures[0], mixtures[1])


@pytest.mark.each
@pytest.mark.parametrize(
    "method",
    [
        TopK(num_layers=2),
        Bottleneck(size=4),
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        Full(),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_every_regularizer_trains_every_method_with_layers(
    name: RegularizerName, method: Method, backbone: Backbone
) -> None:
    result = trained(recipe_of(name, method, epochs=2), backbone)

    assert all(torch.isfinite(tensor).all() for tensor in result.parameters.values())


def test_every_regularizer_gives_other_weights(backbone: Backbone) -> None:
    def weights(name: RegularizerName) -> bytes:
        recipe = recipe_of(name, TopK(num_layers=2), epochs=3, dropout=0.0)
        return tensors_to_bytes(trained(recipe, backbone).parameters)

    assert len({weights(name) for name in NAMES}) == len(NAMES)


def test_regularizer_does_not_disturb_the_random_state_of_the_loop() -> None:
    parameters = {"layers.0.qkv.weight": torch.ones(2, 2, requires_grad=True)}
    before = torch.get_rng_state()

    for name in NAMES:
        settings = recipe_of(name, TopK(num_layers=2)).regularizer
        built = build_regularizer(
            settings, parameters, num_epochs=3, generator=random_source(parameters, seed=0)
        )
        built.begin_epoch(1)
        built.before_forward()
        parameters["layers.0.qkv.weight"].grad = torch.ones(2, 2)
        built.after_backward()
        built.after_step()

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_all_but_gradual_unfreezing_take_the_place_of_dropout(name: RegularizerName) -> None:
    usual = default_recipe(TopK(num_layers=2)).dropout
    assert usual > 0
    keeps = name is RegularizerName.NONE or name.startswith("gradfreeze")

    assert recipe_of(name, TopK(num_layers=2)).dropout == (usual if keeps else 0.0)
    if not keeps:
        with pytest.raises(InvalidRecipeError, match="replaces dropout"):
            recipe_of(name, TopK(num_layers=2), dropout=0.1)


@pytest.mark.parametrize(
    ("name", "method", "epochs", "problem"),
    [
        *((it, HeadOnly(), 2, "method head tunes none") for it in NAMES[1:]),
        *(
            (it, TopK(num_layers=2), 1, "needs at least 2, got 1")
            for it in NAMES
            if it.startswith(("anneal", "graddrop-epoch", "gradfreeze"))
        ),
        (RegularizerName.GRADFREEZE_TOPDOWN, TopK(num_layers=1), 2, "at least 2 tuned layers"),
    ],
)
def test_a_regularizer_without_layers_or_epochs_to_go_by_is_refused(
    name: RegularizerName, method: Method, epochs: int, problem: str, backbone: Backbone
) -> None:
    with pytest.raises(InvalidRecipeError, match=problem):
        trained(recipe_of(name, method, epochs=epochs), backbone)


def test_mixout_of_vectors_alone_is_refused() -> None:
    vectors = {"layers.0.scale": torch.ones(4), "head.output.weight": torch.ones(2, 4)}
    settings = recipe_of(RegularizerName.MIXOUT, TopK(num_layers=1)).regularizer

    with pytest.raises(InvalidRecipeError, match="mixes matrices, and the method tunes none"):
        build_regularizer(settings, vectors, num_epochs=2, generator=random_source(vectors, seed=0))
