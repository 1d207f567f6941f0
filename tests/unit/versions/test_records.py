"""Heads as maths and as records, without loss."""

from itertools import product

import pytest

from nunatak_contract.enums import Activation, HeadKind, HeadNorm, Pooling
from nunatak_contract.heads import DenseBlock
from nunatak_contract.methods import HeadOnly
from nunatak_model import HeadSpec
from nunatak_versions import branch_spec, head_record

BLOCKS = [
    DenseBlock(activation=activation, bias=bias, norm=norm)
    for activation, bias, norm in product(Activation, (True, False), HeadNorm)
]


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_dense_head_comes_back_from_its_record(pooling: Pooling, block: DenseBlock) -> None:
    spec = HeadSpec(num_labels=3, pooling=pooling, dense=True, block=block)

    assert branch_spec(head_record(spec, ("a", "b", "c")), HeadOnly()).head == spec


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        (HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=2), ("O", "B-X")),
        (HeadSpec(kind=HeadKind.QUESTION_ANSWERING, num_labels=2), ()),
        (HeadSpec(kind=HeadKind.RANKING, num_labels=1, pooling=Pooling.FIRST), ()),
        (HeadSpec(num_labels=2, pooling=Pooling.LAST, bias=False, padding_id=0), ("no", "yes")),
    ],
    ids=lambda it: it.kind if isinstance(it, HeadSpec) else "",
)
def test_every_kind_of_head_comes_back_from_its_record(
    spec: HeadSpec, labels: tuple[str, ...]
) -> None:
    assert branch_spec(head_record(spec, labels), HeadOnly()).head == spec
