"""Adapters on NomicBERT and GTE against their published equation."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from doubles.backbones import NOMIC_LIKE, Family
from doubles.checkpoints import encodings, logits, published_logits
from doubles.published import TwinFactory
from nunatak_contract.enums import AdapterInput, Norms
from nunatak_contract.methods import Bottleneck, HeadOnly
from nunatak_model import build_branch

TOLERANCE = 1e-4


@pytest.mark.parametrize("family", NOMIC_LIKE)
def test_adapters_that_read_the_norm_of_the_sum_compute_their_equation(
    family: Family, tmp_path: Path
) -> None:
    """The equation is from Pfeiffer et al. 2020, "MAD-X" (arXiv:2005.00052), sec. 3.2.1."""
    factory = TwinFactory(tmp_path, family=family, num_layers=2)
    twin = factory.twin(Bottleneck(size=8, first_layer=1))
    method = Bottleneck(size=8, first_layer=1, reads=AdapterInput.NORMED_SUM, norms=Norms.FROZEN)
    parameters = {name: it for name, it in twin.branch.parameters.items() if "_norm." not in name}
    spec = replace(twin.branch.spec, method=method)
    branch = build_branch(spec, factory.backbone.config, parameters)
    model = cast("PreTrainedModel", factory.twin(HeadOnly()).model)
    layer = model.get_submodule(f"{family}.layers.1")
    for norm, place in zip(
        ("post_attention_layernorm", "post_mlp_layernorm"),
        ("attention_adapter", "feedforward_adapter"),
        strict=True,
    ):
        adapter = {
            key: parameters[f"layers.1.{place}.{key}"]
            for key in ("down.weight", "down.bias", "up.weight", "up.bias")
        }
        module = layer.get_submodule(norm)
        module.forward = adapted_norm(module.forward, adapter)
    head = {"classifier": "head.output", f"{family}.pooler.dense": "head.dense"}
    for theirs, ours in head.items():
        for kind in ("weight", "bias"):
            model.get_parameter(f"{theirs}.{kind}").data = parameters[f"{ours}.{kind}"]

    for text in encodings(factory.backbone):
        expected = published_logits(model, text)
        found = logits(factory.backbone, branch, text)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def adapted_norm(
    norm: Callable[[Tensor], Tensor], adapter: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    def run(summed: Tensor) -> Tensor:
        inner = functional.linear(norm(summed), adapter["down.weight"], adapter["down.bias"])
        added = functional.linear(inner.tanh(), adapter["up.weight"], adapter["up.bias"])
        return norm(summed + added)

    return run
