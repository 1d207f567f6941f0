"""Adapters with different ranks, scales and layers as one method: the same results."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from nunatak_contract.enums import HeadKind, LinearMap
from nunatak_contract.methods import Lora
from nunatak_exchange.peft_methods import normalised_lora
from nunatak_model import build_branch, maths_of
from nunatak_model.branch import BranchSpec
from nunatak_model.heads import HeadSpec
from nunatak_model.layer import ChangedMaps
from nunatak_model.methods.lora import MAX_RANK
from nunatak_model.ops.low_rank import LoraUpdate

CONFIG = tiny_backbone().config
WIDTHS = maths_of(Lora(rank=1, alpha=1.0, targets=tuple(LinearMap))).parameter_shapes(CONFIG)
HEAD = HeadSpec(kind=HeadKind.QUESTION_ANSWERING, num_labels=2)
HEAD_PARAMETERS = {"head.output.weight": torch.zeros(2, 32), "head.output.bias": torch.zeros(2)}

places = st.tuples(st.integers(0, CONFIG.num_layers - 1), st.sampled_from(LinearMap))
settings_of_updates = st.tuples(st.integers(1, 6), st.sampled_from((0.0, 0.5, 1.0, 4.0)))


def random_update(layer: int, target: LinearMap, rank: int, scale: float) -> LoraUpdate:
    generator = torch.Generator().manual_seed(layer)
    out = WIDTHS[f"layers.{layer}.lora.{target}.up"][0]
    into = WIDTHS[f"layers.{layer}.lora.{target}.down"][1]
    return LoraUpdate(
        down=torch.randn(rank, into, generator=generator),
        up=torch.randn(out, rank, generator=generator),
        scale=scale,
    )


def product(update: LoraUpdate) -> torch.Tensor:
    return update.scale * update.up @ update.down


@given(st.dictionaries(places, settings_of_updates, min_size=1))
def test_every_update_is_the_same_product_and_all_others_are_zero(
    chosen: dict[tuple[int, LinearMap], tuple[int, float]],
) -> None:
    updates = {place: random_update(*place, *it) for place, it in chosen.items()}

    method, parameters = normalised_lora(updates, CONFIG)
    branch = build_branch(
        BranchSpec(method=method, head=HEAD), CONFIG, {**parameters, **HEAD_PARAMETERS}
    )

    assert branch.split_depth == min(layer for layer, _ in updates)
    for layer, override in branch.layers.items():
        assert isinstance(override, ChangedMaps)
        for target, update in override.outputs.items():
            assert isinstance(update, LoraUpdate)
            original = updates.get((layer, target))
            if original is None:
                assert not product(update).any()
            else:
                assert torch.allclose(product(update), product(original), atol=1e-5)


def test_an_adapter_that_is_uniform_is_kept_as_it_is() -> None:
    places = [(layer, LinearMap.KEY) for layer in range(CONFIG.num_layers)]
    updates = {place: random_update(*place, 4, 2.0) for place in places}

    method, parameters = normalised_lora(updates, CONFIG)

    assert method == Lora(rank=4, alpha=8.0, targets=(LinearMap.KEY,))
    for (layer, target), update in updates.items():
        assert torch.equal(parameters[f"layers.{layer}.lora.{target}.down"], update.down)
        assert torch.equal(parameters[f"layers.{layer}.lora.{target}.up"], update.up)


def test_a_rank_may_exceed_the_width_up_to_a_limit() -> None:
    wide = random_update(0, LinearMap.KEY, MAX_RANK, 1.0)
    assert normalised_lora({(0, LinearMap.KEY): wide}, CONFIG)[0].rank == MAX_RANK >= 256

    with raises("invalid_method", match="1024"):
        normalised_lora(
            {(0, LinearMap.KEY): random_update(0, LinearMap.KEY, MAX_RANK + 1, 1.0)}, CONFIG
        )
