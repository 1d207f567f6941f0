"""Laws of representational similarity."""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.papers.analysis.rsa import layer_similarities, sampled_tokens, similarity
from doubles.backbones import tiny_backbone
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import TopK
from nunatak_model import BranchSpec, HeadSpec, build_branch, initial_parameters

BACKBONE = tiny_backbone(num_layers=3)
TEXTS = ["abc de", "f", "ghij klm no", "zz yx"]
INPUTS = [it for (it,) in BACKBONE.tokenizer.encode_windows(TEXTS, max_length=32, stride=0)]


def states(rows: int, width: int, *, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def cosine(first: Tensor, second: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(first, second, dim=0).item()


def test_similarity_is_its_definition_by_loops() -> None:
    before, after = states(9, 5, seed=1), states(9, 7, seed=2)
    pairs = list(combinations(range(9), 2))

    expected = np.corrcoef(
        [cosine(before[i], before[j]) for i, j in pairs],
        [cosine(after[i], after[j]) for i, j in pairs],
    )[0, 1]

    assert similarity(before, after) == pytest.approx(expected, abs=1e-6)


def test_special_tokens_are_never_drawn() -> None:
    drawn = sampled_tokens(INPUTS, num_tokens=1000, seed=0).tolist()
    ids = [token for encoding in INPUTS for token in encoding.token_ids]
    special = {INPUTS[0].token_ids[0], INPUTS[0].token_ids[-1]}

    assert special.isdisjoint(ids[position] for position in drawn)
    assert len(drawn) == len(ids) - 2 * len(INPUTS)


def test_layers_below_the_split_depth_are_the_backbones() -> None:
    head = HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=2)
    spec = BranchSpec(method=TopK(num_layers=1), head=head)
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: tensor + torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_parameters(spec, BACKBONE, generator=generator).items()
    }

    lower, middle, upper = layer_similarities(
        BACKBONE, build_branch(spec, BACKBONE.config, parameters), INPUTS
    )

    assert (lower, middle) == pytest.approx((1.0, 1.0))
    assert upper < 0.99
