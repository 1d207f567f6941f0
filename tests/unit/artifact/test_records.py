"""Methods as maths and as records: nothing lost between them, old records still read."""

from itertools import product

import pytest
from pydantic import ValidationError

from nunatak_artifact import method_of, method_record
from nunatak_model import (
    AdaptedBlocks,
    AdapterActivation,
    AdapterInput,
    Bottleneck,
    Full,
    HeadOnly,
    Lora,
    LoraTarget,
    Method,
    Norms,
    TopK,
)
from nunatak_registry.manifest import BottleneckRecord

METHODS: list[Method] = [
    TopK(num_layers=3),
    HeadOnly(),
    Full(),
    Lora(rank=3, alpha=0.1, targets=(LoraTarget.KEY, LoraTarget.FEEDFORWARD_IN), first_layer=2),
    *(
        Bottleneck(
            size=5, first_layer=1, blocks=blocks, reads=reads, activation=activation, norms=norms
        )
        for blocks, reads, activation, norms in product(
            AdaptedBlocks, AdapterInput, AdapterActivation, Norms
        )
    ),
]


def test_every_method_comes_back_from_its_record() -> None:
    for method in METHODS:
        record = method_record(method)
        assert method_of(type(record).model_validate_json(record.model_dump_json())) == method


def test_a_record_of_before_there_were_placements_is_the_published_bottleneck() -> None:
    record = BottleneckRecord.model_validate_json('{"kind":"bottleneck","size":8,"first_layer":2}')

    assert method_of(record) == Bottleneck(size=8, first_layer=2)


def test_an_unknown_placement_is_no_record() -> None:
    with pytest.raises(ValidationError):
        BottleneckRecord.model_validate_json('{"kind":"bottleneck","size":8,"blocks":"none"}')
