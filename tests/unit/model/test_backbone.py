"""A backbone with only its lowest layers answers like the whole backbone, or not at all."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from doubles.backbones import FAMILIES, tiny_backbone
from doubles.refusals import raises
from doubles.tasks import LABELS, random_branch
from nunatak_contract.methods import QUERY_AND_VALUE, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    Row,
    UnsupportedBackboneError,
    convert_branch,
    forward,
    keep_lowest_layers,
    pack_backbone,
    quantize_backbone,
)

TEXTS = ["where is my parcel?", "it is late, and nobody answers"]


@pytest.fixture(scope="module", params=FAMILIES)
def whole(request: pytest.FixtureRequest) -> Backbone:
    return tiny_backbone(num_layers=4, family=request.param)


def branch_on(backbone: Backbone, whole: Backbone, method: Method) -> Branch:
    branch = random_branch(whole, method, num_labels=len(LABELS), seed=1)
    return convert_branch(branch, backbone)


def rows_on(backbone: Backbone, whole: Backbone, *methods: Method) -> list[Row]:
    encodings = backbone.tokenizer.encode(TEXTS, max_length=32)
    branches = [branch_on(backbone, whole, method) for method in methods]
    return [Row(encoding=it, branch=branch) for it in encodings for branch in branches]


def test_tasks_that_own_the_layers_above_answer_with_the_same_bits(whole: Backbone) -> None:
    methods = (TopK(num_layers=2), TopK(num_layers=3), Full())
    held = pack_backbone(keep_lowest_layers(whole, 2))

    with torch.inference_mode():
        expected = forward(pack_backbone(whole), rows_on(pack_backbone(whole), whole, *methods))
        found = forward(held, rows_on(held, whole, *methods))

    assert held.digest == whole.digest
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "method", [HeadOnly(), Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE), TopK(num_layers=1)]
)
def test_a_read_of_a_layer_that_is_not_held_is_refused(whole: Backbone, method: Method) -> None:
    held = keep_lowest_layers(whole, 2)

    with raises("layer_not_held", match="layer 2 is needed"):
        forward(held, rows_on(held, whole, TopK(num_layers=2), method))


def test_what_is_left_out_is_counted(whole: Backbone) -> None:
    held = keep_lowest_layers(whole, 1)

    assert held.num_bytes < whole.num_bytes
    assert held.whole_bytes == whole.whole_bytes == whole.num_bytes
    assert held.num_bytes == whole.num_bytes - sum(
        tensor.nbytes
        for name, tensor in whole.parameters.items()
        if name.startswith(("layers.1.", "layers.2.", "layers.3."))
    )


@pytest.mark.parametrize("prepare", [replace, quantize_backbone], ids=["plain", "int8"])
def test_weights_are_still_distinguished_from_those_left_out(
    whole: Backbone, prepare: Callable[[Backbone], Backbone]
) -> None:
    backbone = prepare(whole)
    held = keep_lowest_layers(backbone, 1)
    name = next(it for it in held.left_out if it.endswith(".weight"))
    weight = backbone.floating(name)
    assert weight is not None
    moved = weight.clone()
    moved.view(-1)[0] += 1

    assert held.equals(name, weight) is True
    assert held.equals(name, moved) is False
    assert held.equals("head.weight", weight) is None


@pytest.mark.parametrize("num_layers", [0, 5])
def test_a_backbone_cannot_be_held_with_other_layers_than_it_has(
    whole: Backbone, num_layers: int
) -> None:
    with pytest.raises(UnsupportedBackboneError, match="1 to 4 of its layers"):
        keep_lowest_layers(whole, num_layers)


def test_layers_are_left_out_before_they_are_packed(whole: Backbone) -> None:
    packed = pack_backbone(whole)
    if packed.is_packed:
        with pytest.raises(UnsupportedBackboneError, match="before"):
            keep_lowest_layers(packed, 2)
