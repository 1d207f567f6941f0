"""The first layer where an encoder differs from its backbone."""

import pytest
import torch

from doubles.backbones import tiny_backbone
from nunatak_exchange.transformers_import import Divergence, find_divergence
from nunatak_model import Backbone


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone(num_layers=3)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((5,), "layer 5 differs: top-1 of 6"),
        ((3, 4, 5), "layers 3-5 differ: top-3 of 6"),
        ((0, 3, 4), "layers 0, 3-4 differ: top-6 of 6"),
        ((1, 3, 5), "layers 1, 3, 5 differ: top-5 of 6"),
    ],
)
def test_layers_are_reported_as_ranges(layers: tuple[int, ...], text: str) -> None:
    assert Divergence(embeddings=False, layers=layers, num_layers=6).describe() == text


def test_equal_encoders_do_not_diverge(backbone: Backbone) -> None:
    found = find_divergence(dict(backbone.parameters), backbone)

    assert (found.embeddings, found.layers) == (False, ())


def test_every_single_tensor_is_looked_at(backbone: Backbone) -> None:
    for name, tensor in backbone.parameters.items():
        bumped = tensor.clone()
        bumped.view(-1)[-1] = torch.nextafter(bumped.view(-1)[-1], torch.tensor(9.0))

        found = find_divergence({**backbone.parameters, name: bumped}, backbone)

        assert found.embeddings or found.layers, name
