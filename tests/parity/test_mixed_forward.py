"""The mixed forward against transformers' and peft's own models, row by row."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from doubles.backbones import ANSWERING, FAMILIES, NOMIC_LIKE, Family
from doubles.checkpoints import encodings, logits, published_logits
from doubles.published import Twin, TwinFactory
from nunatak_contract.enums import AdapterInput, HeadKind, LinearMap, Norms
from nunatak_contract.methods import (
    QUERY_AND_VALUE,
    Bottleneck,
    Full,
    HeadOnly,
    Ia3,
    Lora,
    Method,
    TopK,
)
from nunatak_model import Encoding, Row, build_branch, forward

NUM_LAYERS = 3
MAX_TOKENS = 64
TOLERANCE = 1e-4

METHODS: dict[str, Method] = {
    "head": HeadOnly(),
    **{f"topk-{k}": TopK(num_layers=k) for k in range(1, NUM_LAYERS + 1)},
    **{
        f"lora-from-{n}": Lora(rank=4, alpha=8.0, first_layer=n, targets=QUERY_AND_VALUE)
        for n in range(NUM_LAYERS)
    },
    "lora-all-targets": Lora(rank=3, alpha=6.0, targets=tuple(LinearMap)),
    "ia3": Ia3(),
    **{f"ia3-from-{n}": Ia3(first_layer=n) for n in range(1, NUM_LAYERS)},
    "ia3-all-outputs": Ia3(scaled_outputs=tuple(LinearMap), scaled_inputs=()),
    "ia3-all-inputs": Ia3(
        scaled_outputs=(LinearMap.QUERY,),
        scaled_inputs=(
            LinearMap.ATTENTION_OUTPUT,
            LinearMap.FEEDFORWARD_IN,
            LinearMap.FEEDFORWARD_OUT,
        ),
    ),
    **{f"bottleneck-from-{n}": Bottleneck(size=8, first_layer=n) for n in range(NUM_LAYERS)},
    "full": Full(),
}
WITH_HEADS = ("head", "topk-2", "lora-from-1", "ia3-from-1", "bottleneck-from-0", "full")
"""The methods of tasks with each other kind of head."""
OTHER_KINDS = (HeadKind.TOKEN_CLASSIFICATION, HeadKind.QUESTION_ANSWERING, HeadKind.RANKING)


@pytest.fixture(scope="module", params=FAMILIES)
def factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TwinFactory:
    family: Family = request.param
    return TwinFactory(tmp_path_factory.mktemp(family), family=family, num_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def twins(factory: TwinFactory) -> dict[str, Twin]:
    return {
        name: factory.twin(method, num_labels=2 + index % 4)
        for index, (name, method) in enumerate(METHODS.items())
    }


@pytest.fixture(scope="module")
def with_heads(factory: TwinFactory) -> dict[str, Twin]:
    """Two methods with each kind; the next family has other methods with it."""
    start = FAMILIES.index(factory.family)
    kinds = islice(cycle(OTHER_KINDS), start, None)
    return {
        f"{kind}-{name}": factory.twin(METHODS[name], kind=kind, num_labels=1 + index)
        for index, (name, kind) in enumerate(zip(WITH_HEADS, kinds, strict=False))
        if kind is not HeadKind.QUESTION_ANSWERING or factory.family in ANSWERING
    }


def random_encoding(chance: random.Random, num_tokens: int, *, num_types: int) -> Encoding:
    second = chance.randint(0, num_tokens) if num_types > 1 else num_tokens
    return Encoding(
        token_ids=tuple(chance.randint(5, 99) for _ in range(num_tokens)),
        type_ids=tuple(int(position >= second) for position in range(num_tokens)),
    )


def test_tasks_of_the_oracle_differ_from_one_another(twins: dict[str, Twin]) -> None:
    """Guards the oracle: with equal answers of all tasks, parity would prove nothing."""
    encoding = random_encoding(random.Random(1), 9, num_types=1)

    answers = [twin.expected(encoding)[:2] for twin in twins.values()]

    for index, answer in enumerate(answers):
        for other in answers[index + 1 :]:
            assert (answer - other).abs().max() > 1e-2


@pytest.mark.each
@pytest.mark.parametrize("seed", range(6))
def test_each_row_of_a_shuffled_mixed_batch_equals_its_published_model(
    seed: int, factory: TwinFactory, twins: dict[str, Twin], with_heads: dict[str, Twin]
) -> None:
    chance, twins = random.Random(seed), twins | with_heads
    num_types = factory.backbone.config.num_token_types
    lengths = [1, MAX_TOKENS, *(chance.randint(1, MAX_TOKENS) for _ in range(6))]
    encodings = [random_encoding(chance, length, num_types=num_types) for length in lengths]
    names = [*twins, *chance.sample([*twins], 10)]
    questions = [(name, chance.choice(encodings)) for name in names]
    questions += [("head", encoding) for encoding in encodings]
    questions += chance.sample(questions, 5)
    chance.shuffle(questions)
    rows = [Row(encoding=encoding, branch=twins[name].branch) for name, encoding in questions]

    with torch.inference_mode():
        logits = forward(factory.backbone, rows)

    for (name, encoding), answer in zip(questions, logits, strict=True):
        expected = twins[name].expected(encoding)
        torch.testing.assert_close(answer, expected, atol=TOLERANCE, rtol=0, msg=name)


@pytest.mark.each
@pytest.mark.parametrize(
    "name", ["head", "topk-2", "lora-all-targets", "ia3", "bottleneck-from-0", "full"]
)
def test_gradients_of_ragged_rows_equal_the_published_gradients(
    name: str, factory: TwinFactory, twins: dict[str, Twin]
) -> None:
    twin, config = twins[name], factory.backbone.config
    chance = random.Random(name)
    encodings = [
        random_encoding(chance, length, num_types=config.num_token_types)
        for length in (3, 9, 9, 40)
    ]
    parameters = {key: it.clone().requires_grad_() for key, it in twin.branch.parameters.items()}
    branch = build_branch(twin.branch.spec, config, parameters)

    logits = forward(factory.backbone, [Row(encoding=it, branch=branch) for it in encodings])
    torch.stack([it.square().sum() for it in logits]).sum().backward()

    for key, expected in factory.gradients(twin, encodings).items():
        found = parameters[key].grad
        assert found is not None
        torch.testing.assert_close(found.to_dense(), expected, atol=1e-3, rtol=1e-3, msg=key)


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
