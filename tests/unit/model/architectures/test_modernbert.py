import random

import pytest
import torch
from torch import Tensor

from doubles.backbones import tiny_backbone
from doubles.tasks import EVERY_FORM, random_branch, random_parameters, spec_of
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import (
    Full,
    HeadOnly,
    Lora,
    Method,
    TopK,
)
from nunatak_model import (
    Branch,
    Encoding,
    Row,
    TrunkCache,
    build_branch,
    forward,
    model_size,
    parameter_shapes,
    run_trunk,
)

BACKBONE = tiny_backbone(family="modernbert")
FINAL_NORM = "layers.3.final_norm.weight"


def branch_of(method: Method, seed: int = 0) -> Branch:
    return random_branch(BACKBONE, method, num_labels=3, seed=seed)


def encoding_of(num_tokens: int) -> Encoding:
    chance = random.Random(num_tokens)
    token_ids = tuple(chance.randint(5, 200) for _ in range(num_tokens))
    return Encoding(token_ids=token_ids, type_ids=(0,) * num_tokens)


@pytest.mark.parametrize("method", EVERY_FORM, ids=repr)
def test_only_tasks_that_own_the_last_layer_own_the_norm_over_the_output(method: Method) -> None:
    shapes = parameter_shapes(spec_of(BACKBONE, method, num_labels=3), BACKBONE.config)

    assert (FINAL_NORM in shapes) == isinstance(method, TopK | Full)
    assert "layers.0.attention_norm.weight" not in shapes


@pytest.mark.parametrize("method", EVERY_FORM, ids=repr)
def test_gradients_of_ragged_rows_reach_every_parameter(method: Method) -> None:
    branch = branch_of(method)
    parameters = {name: it.requires_grad_() for name, it in branch.parameters.items()}
    rows = [Row(encoding=encoding_of(n), branch=branch) for n in (3, 40, 50, 60)]

    logits = forward(BACKBONE, rows, dropout=0.1)
    gradients = torch.autograd.grad(torch.stack(logits).square().sum(), list(parameters.values()))

    for name, gradient in zip(parameters, gradients, strict=True):
        assert gradient.any(), name
        assert torch.isfinite(gradient).all(), name


@pytest.mark.parametrize("method", EVERY_FORM[:-1], ids=repr)
def test_starting_from_held_states_of_the_trunk_equals_starting_from_the_embeddings(
    method: Method,
) -> None:
    branch = branch_of(method)
    rows = [Row(encoding=encoding_of(n), branch=branch) for n in (1, 9, 30, 60)]
    cache = TrunkCache(max_bytes=2**20)

    with torch.inference_mode():
        expected = forward(BACKBONE, rows)
        forward(BACKBONE, rows, trunk=cache)
        answers = forward(BACKBONE, rows, trunk=cache)

    assert cache.stats.hits == (len(rows) if branch.split_depth else 0)
    torch.testing.assert_close(answers, expected, atol=1e-5, rtol=0)


def test_an_update_of_the_fused_map_is_three_updates_that_share_their_down() -> None:
    spec = spec_of(BACKBONE, Lora(rank=2, alpha=6.0, targets=tuple(LinearMap)[:3]), num_labels=3)
    generator = torch.Generator().manual_seed(3)
    down, up = (torch.randn(shape, generator=generator) * 0.2 for shape in ((2, 32), (96, 2)))
    parameters = random_parameters(spec, BACKBONE, seed=1)
    merged = dict[str, Tensor](BACKBONE.parameters)
    for layer in range(4):
        for part, target in enumerate(("query", "key", "value")):
            parameters[f"layers.{layer}.lora.{target}.down"] = down
            parameters[f"layers.{layer}.lora.{target}.up"] = up.chunk(3)[part].contiguous()
        merged[f"layers.{layer}.qkv.weight"] = merged[f"layers.{layer}.qkv.weight"] + 3 * up @ down
    full = spec_of(BACKBONE, Full(), num_labels=3)
    head = {name: it for name, it in parameters.items() if name.startswith("head.")}
    branches = (
        build_branch(spec, BACKBONE.config, parameters),
        build_branch(full, BACKBONE.config, merged | head),
    )

    with torch.inference_mode():
        rows = [Row(encoding=encoding_of(40), branch=branch) for branch in branches]
        low_rank, merged_logits = forward(BACKBONE, rows)

    torch.testing.assert_close(low_rank, merged_logits, atol=1e-4, rtol=0)


def test_bfloat16_agrees_with_float32() -> None:
    half = tiny_backbone(family="modernbert", dtype=torch.bfloat16)
    encoding = encoding_of(60)

    with torch.inference_mode():
        exact = run_trunk(BACKBONE, [encoding], depth=4).hidden[encoding]
        rounded = run_trunk(half, [encoding], depth=4).hidden[encoding]

    assert rounded.dtype is torch.bfloat16
    assert half.digest == BACKBONE.digest
    assert torch.cosine_similarity(exact, rounded.float()).min() > 0.99


def test_sizes_by_part_add_up_to_the_dedicated_model() -> None:
    spec = spec_of(BACKBONE, HeadOnly(), num_labels=3)

    size = model_size(BACKBONE.config, spec.head)

    own_head = sum(
        torch.Size(shape).numel() for shape in parameter_shapes(spec, BACKBONE.config).values()
    )
    assert size.total == pytest.approx(BACKBONE.num_parameters + own_head)
