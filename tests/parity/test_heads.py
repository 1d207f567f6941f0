"""Every head of every method against transformers' and peft's own classes, in mixed batches."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.backbones import ANSWERING, Family
from doubles.published import Twin, TwinFactory
from nunatak_contract.enums import HeadKind
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
from nunatak_model import Encoding, Row, forward

MAX_TOKENS = 40
TOLERANCE = 1e-4

METHODS: dict[str, Method] = {
    "head": HeadOnly(),
    "topk": TopK(num_layers=2),
    "lora": Lora(rank=4, alpha=8.0, first_layer=1, targets=QUERY_AND_VALUE),
    "ia3": Ia3(first_layer=1),
    "bottleneck": Bottleneck(size=8),
    "full": Full(),
}
NAMES = [f"{kind}-{method}" for kind in HeadKind for method in METHODS]


@pytest.fixture(scope="module", params=ANSWERING)
def factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TwinFactory:
    family: Family = request.param
    return TwinFactory(tmp_path_factory.mktemp(family), family=family, num_layers=3)


@pytest.fixture(scope="module")
def twins(factory: TwinFactory) -> dict[str, Twin]:
    return {
        f"{kind}-{name}": factory.twin(method, kind=kind, num_labels=1 + index)
        for kind in HeadKind
        for index, (name, method) in enumerate(METHODS.items())
    }


def encoding_of(seed: int, *, num_types: int) -> Encoding:
    chance = random.Random(seed)
    num_tokens = chance.choice((1, 2, MAX_TOKENS, chance.randint(1, MAX_TOKENS)))
    second = chance.randint(0, num_tokens) if num_types > 1 else num_tokens
    return Encoding(
        token_ids=tuple(chance.randint(5, 99) for _ in range(num_tokens)),
        type_ids=tuple(int(position >= second) for position in range(num_tokens)),
    )


@given(
    questions=st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 12)), min_size=1, max_size=30
    )
)
@settings(
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_each_row_of_any_mix_of_heads_equals_its_published_model(
    questions: list[tuple[str, int]], factory: TwinFactory, twins: dict[str, Twin]
) -> None:
    num_types = factory.backbone.config.num_token_types
    encodings = [encoding_of(seed, num_types=num_types) for _, seed in questions]
    rows = [
        Row(encoding=encoding, branch=twins[name].branch)
        for (name, _), encoding in zip(questions, encodings, strict=True)
    ]

    with torch.inference_mode():
        logits = forward(factory.backbone, rows)

    for (name, _), encoding, answer in zip(questions, encodings, logits, strict=True):
        torch.testing.assert_close(answer, twins[name].expected(encoding), atol=TOLERANCE, rtol=0)


def test_a_head_that_reads_tokens_gives_each_token_its_logits(tmp_path: Path) -> None:
    factory = TwinFactory(tmp_path, family="bert", num_layers=1)
    kinds = (HeadKind.TOKEN_CLASSIFICATION, HeadKind.QUESTION_ANSWERING, HeadKind.RANKING)
    encoding = Encoding(token_ids=(5, 6, 7), type_ids=(0, 0, 0))
    rows = [
        Row(encoding=encoding, branch=factory.twin(HeadOnly(), kind=kind, num_labels=5).branch)
        for kind in kinds
    ]

    with torch.inference_mode():
        shapes = [tuple(logits.shape) for logits in forward(factory.backbone, rows)]

    assert shapes == [(3, 5), (3, 2), (1,)]
