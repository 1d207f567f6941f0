"""Embeddings from the mixed forward."""

import pytest
import torch

from doubles.backbones import FAMILIES, Family, tiny_backbone
from doubles.tasks import random_parameters, spec_of
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import TopK
from nunatak_model import Row, TrunkCache, build_branch, embedding_branch, forward, run_trunk
from nunatak_model.sentence_folder import POOLINGS

TEXTS = ["where is my parcel?", "a", "no, not that one; the other one!"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", POOLINGS.values())
def test_an_embedding_is_the_pooled_state_above_the_last_layer(
    family: Family, pooling: Pooling
) -> None:
    backbone = tiny_backbone(family=family, pooling=pooling)
    encodings = backbone.tokenizer.encode(TEXTS, max_length=48)
    branch = embedding_branch(backbone)

    vectors = forward(backbone, [Row(encoding=it, branch=branch) for it in encodings])

    depth = backbone.config.num_layers
    states = run_trunk(backbone, encodings, depth=depth).hidden
    for encoding, vector in zip(encodings, vectors, strict=True):
        state = states[encoding]
        ways = {Pooling.MEAN: state.mean(0), Pooling.FIRST: state[0], Pooling.LAST: state[-1]}
        assert torch.allclose(vector, ways[pooling], atol=1e-5)


def test_an_embedding_owns_no_bytes_and_shares_every_layer() -> None:
    backbone = tiny_backbone()

    branch = embedding_branch(backbone)

    assert branch.num_bytes == 0
    assert branch.split_depth == backbone.config.num_layers


def test_an_embedding_next_to_tasks_is_the_embedding_alone() -> None:
    backbone = tiny_backbone()
    encodings = backbone.tokenizer.encode(TEXTS, max_length=48)
    branch = embedding_branch(backbone)
    spec = spec_of(backbone, TopK(num_layers=2), num_labels=3)
    task = build_branch(spec, backbone.config, random_parameters(spec, backbone, seed=0))
    alone = [forward(backbone, [Row(encoding=it, branch=branch)])[0] for it in encodings]

    rows = [Row(encoding=it, branch=each) for it in encodings for each in (task, branch)]
    mixed = forward(backbone, rows, trunk=TrunkCache(max_bytes=2**20))

    for expected, vector in zip(alone, mixed[1::2], strict=True):
        assert torch.allclose(vector, expected, atol=1e-5)
