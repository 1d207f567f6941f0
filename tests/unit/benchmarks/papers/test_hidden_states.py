"""Laws of hidden states, which equal the intermediate states of the mixed forward."""

import pytest
import torch

from benchmarks.papers.analysis.rsa import hidden_states
from doubles.backbones import FAMILIES, Family, tiny_backbone
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, Lora, Method, TopK
from nunatak_model import (
    BranchSpec,
    HeadSpec,
    Row,
    build_branch,
    forward,
    initial_parameters,
    run_trunk,
)

TEXTS = ("abc de", "f", "ghij klm no")


@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_the_backbone_match_the_trunk_at_every_depth(family: Family) -> None:
    backbone = tiny_backbone(num_layers=3, family=family)
    inputs = backbone.tokenizer.encode(TEXTS, max_length=32)

    states = hidden_states(backbone, inputs)

    assert len(states) == 3
    for depth, state in enumerate(states, start=1):
        rows = run_trunk(backbone, inputs, depth=depth).hidden
        torch.testing.assert_close(state, torch.cat([rows[encoding] for encoding in inputs]))


@pytest.mark.parametrize(
    "method",
    [
        Full(),
        TopK(num_layers=2),
        Bottleneck(size=4),
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
    ],
    ids=["full", "topk", "bottleneck", "lora"],
)
def test_last_state_of_a_branch_is_what_its_head_reads(method: Method) -> None:
    backbone = tiny_backbone(num_layers=3)
    width = backbone.config.hidden_width
    head = HeadSpec(kind=HeadKind.TOKEN_CLASSIFICATION, num_labels=width)
    spec = BranchSpec(method=method, head=head)
    generator = torch.Generator().manual_seed(1)
    parameters = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_parameters(spec, backbone, generator=generator).items()
    }
    # A head that returns its input.
    parameters |= {"head.output.weight": torch.eye(width), "head.output.bias": torch.zeros(width)}
    branch = build_branch(spec, backbone.config, parameters)
    inputs = backbone.tokenizer.encode(TEXTS, max_length=32)

    last = hidden_states(backbone, inputs, branch=branch)[-1]

    shown = forward(backbone, [Row(encoding=encoding, branch=branch) for encoding in inputs])
    torch.testing.assert_close(last, torch.cat(shown))
    assert not torch.allclose(last, hidden_states(backbone, inputs)[-1])
