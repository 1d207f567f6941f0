"""The JSON of a method is complete and readable, and old JSON is still readable."""

from itertools import product

import pytest
from pydantic import TypeAdapter, ValidationError

from nunatak_contract.enums import (
    Activation,
    AdaptedBlocks,
    AdapterInput,
    LinearMap,
    MethodKind,
    Norms,
)
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK

METHODS: list[Method] = [
    TopK(num_layers=3),
    HeadOnly(),
    Full(),
    Lora(rank=3, alpha=0.1, targets=(LinearMap.KEY, LinearMap.FEEDFORWARD_IN), first_layer=2),
    Ia3(scaled_outputs=(LinearMap.QUERY,), scaled_inputs=(), first_layer=1),
    *(
        Bottleneck(
            size=5, first_layer=1, blocks=blocks, reads=reads, activation=activation, norms=norms
        )
        for blocks, reads, activation, norms in product(
            AdaptedBlocks, AdapterInput, Activation, Norms
        )
    ),
]
READER: TypeAdapter[Method] = TypeAdapter(Method)


def test_every_method_comes_back_from_its_json() -> None:
    assert {method.kind for method in METHODS} == set(MethodKind)
    for method in METHODS:
        assert READER.validate_json(method.model_dump_json()) == method
        assert READER.validate_python(method.model_dump(mode="json")) == method


@pytest.mark.parametrize(
    ("method", "text", "width"),
    [
        (TopK(num_layers=1), "topk, 1 layer", None),
        (TopK(num_layers=2), "topk, 2 layers", None),
        (HeadOnly(), "head", None),
        (Bottleneck(size=8), "bottleneck, size 8", 8),
        (Lora(rank=4, alpha=8.0, targets=(LinearMap.KEY,)), "lora, rank 4", 4),
        (Ia3(), "ia3, 3 vectors a layer", None),
        (Ia3(scaled_inputs=(), scaled_outputs=(LinearMap.KEY,)), "ia3, 1 vector a layer", None),
        (Full(), "full", None),
    ],
)
def test_a_method_says_what_tells_it_from_its_like(
    method: Method, text: str, width: int | None
) -> None:
    assert (method.text, method.width) == (text, width)


def test_the_json_of_a_method_is_the_one_that_stored_digests_were_made_of() -> None:
    lora = Lora(rank=2, alpha=4.0, targets=(LinearMap.QUERY, LinearMap.VALUE))

    assert lora.model_dump_json() == (
        '{"kind":"lora","rank":2,"alpha":4.0,"targets":["query","value"],"first_layer":0}'
    )
    assert TopK(num_layers=2).model_dump_json() == '{"kind":"topk","num_layers":2}'


def test_json_of_before_there_were_placements_is_the_published_bottleneck() -> None:
    read = READER.validate_json('{"kind":"bottleneck","size":8,"first_layer":2}')

    assert read == Bottleneck(size=8, first_layer=2)


@pytest.mark.parametrize(
    "json",
    [
        '{"kind":"bottleneck","size":8,"blocks":"none"}',
        '{"kind":"bottleneck"}',
        '{"kind":"bottleneck","size":0}',
        '{"kind":"bottleneck","size":8,"first_layer":-1}',
        '{"kind":"lora","rank":2,"targets":["query"]}',
        '{"kind":"lora","rank":2,"alpha":0,"targets":["query"]}',
        '{"kind":"lora","rank":0,"alpha":4,"targets":["query"]}',
        '{"kind":"lora","rank":2,"alpha":4,"targets":[]}',
        '{"kind":"lora","alpha":4,"targets":["query"]}',
        '{"kind":"topk"}',
        '{"kind":"topk","num_layers":0}',
        '{"kind":"head","size":8}',
        '{"kind":"prefix"}',
        "{}",
    ],
)
def test_a_method_that_is_unknown_impossible_or_not_said_in_full_is_refused(json: str) -> None:
    with pytest.raises(ValidationError):
        READER.validate_json(json)
