from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest

from doubles.backbones import tiny_backbone
from doubles.examples import toy_data
from doubles.refusals import raises
from nunatak_contract.enums import Reads
from nunatak_contract.manifest import TaskDraft
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_model import Backbone, tensors_to_bytes
from nunatak_training.data import Example, ExampleSet
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.publishing import (
    MAX_PROBE_CHARS,
    check_publishable,
    draft_trained,
    probe_inputs,
    reads_of,
)
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(name="backbone", scope="module")
def make_backbone() -> Backbone:
    return tiny_backbone(num_layers=3)


def trained(method: Method, backbone: Backbone) -> TrainedTask:
    changes = {"epochs": 1, "min_steps": 0, "batch_size": 16, "max_length": 32}
    recipe = default_recipe(method, changes=dict(changes))
    return fit_task(toy_data(), recipe, backbone, report=Report())


def drafted(result: TrainedTask, backbone: Backbone) -> TaskDraft:
    draft = draft_trained(result, backbone, task="toy", created_at=CREATED_AT, note="a note")
    return draft.manifest


@pytest.mark.parametrize(
    ("method", "split_depth"),
    [
        pytest.param(TopK(num_layers=1), 2, id="topk"),
        pytest.param(HeadOnly(), 3, id="head"),
        pytest.param(Bottleneck(size=4, first_layer=1), 1, id="bottleneck"),
        pytest.param(Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE), 0, id="lora"),
        pytest.param(Full(), None, id="full"),
    ],
)
def test_split_depth_and_counts_follow_the_method(
    method: Method, split_depth: int | None, backbone: Backbone
) -> None:
    result = trained(method, backbone)

    draft = drafted(result, backbone)

    sizes = {name: tensor.numel() for name, tensor in result.parameters.items()}
    head = sum(size for name, size in sizes.items() if name.startswith("head."))
    assert draft.method.kind == method.kind.value
    assert draft.split_depth == split_depth
    assert draft.parameter_counts.head == head
    assert draft.parameter_counts.branch == sum(sizes.values()) - head


def test_manifest_says_what_was_trained_on_what(backbone: Backbone) -> None:
    result = trained(HeadOnly(), backbone)
    data = tensors_to_bytes(result.parameters)

    draft = drafted(result, backbone)

    assert draft.data is not None
    assert draft.recipe is not None
    assert draft.head.labels == ("early", "late")
    assert draft.backbone.digest == backbone.digest
    assert draft.tokenizer_digest == backbone.tokenizer.digest
    assert draft.max_length == 32
    assert draft.reads is Reads.SINGLE
    assert (draft.data.num_train, draft.data.num_dev) == (64, 16)
    assert draft.data.train_digest == result.data.train.digest
    assert draft.recipe.settings == result.recipe.settings()
    assert draft.recipe.digest == result.recipe.digest
    assert [(it.name, it.data_digest) for it in draft.metrics] == [
        ("accuracy", result.data.dev.digest)
    ]
    assert draft.confusion is not None
    assert draft.confusion.data_digest == result.data.dev.digest
    counts = draft.confusion.counts
    assert sum(counts.values()) == 16
    right = sum(count for (truth, predicted), count in counts.items() if truth == predicted)
    assert right / 16 == pytest.approx(draft.metrics[0].value)
    assert draft.blobs[0].sha256 == sha256(data).hexdigest()
    assert draft.note == "a note"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "note: expected at most 4096"),
        ({"name": "x" * 201}, "data.name"),
        ({"labels": tuple(f"label {number}" for number in range(10_001))}, "head.labels"),
    ],
)
def test_what_a_version_has_no_room_for_is_refused(
    changes: dict[str, Any], problem: str, backbone: Backbone
) -> None:
    recipe = default_recipe(HeadOnly())

    with raises("unpublishable", match=problem):
        check_publishable(
            replace(toy_data(), **changes), recipe, backbone, note="" if changes else "x" * 4097
        )


def texts(*lengths: int) -> list[Example]:
    return [Example(text="x" * length, label="a") for length in lengths]


@pytest.mark.parametrize(
    ("examples", "lengths"),
    [
        pytest.param(texts(9, 1, 5, 7, 3, 8, 2), [1, 3, 7, 9], id="spread-from-short-to-long"),
        pytest.param(texts(4, 4, 2), [2, 4], id="no-input-twice"),
        pytest.param(texts(3), [3], id="a-single-one"),
        pytest.param(texts(2, 10_000), [2, MAX_PROBE_CHARS], id="cut-to-what-a-manifest-holds"),
    ],
)
def test_probe_inputs_have_different_lengths(
    examples: Sequence[Example], lengths: list[int]
) -> None:
    assert [len(text) for text in probe_inputs(examples)] == lengths
    pair = Example(text="xy", text_pair="z" * lengths[0], label="a")
    assert ("xy", "z" * lengths[0]) in probe_inputs([pair, *examples[:3]])


@pytest.mark.parametrize(
    ("train_pairs", "dev_pairs", "reads"),
    [(0, 0, Reads.SINGLE), (64, 16, Reads.PAIR), (64, 0, None), (1, 16, None)],
)
def test_a_task_reads_what_its_examples_are(
    train_pairs: int, dev_pairs: int, reads: Reads | None
) -> None:
    data = toy_data()

    def paired(examples: ExampleSet, count: int) -> ExampleSet:
        found = [
            replace(it, text_pair="more" if place < count else None)
            for place, it in enumerate(examples.examples)
        ]
        return ExampleSet(examples=tuple(found))

    mixed = replace(data, train=paired(data.train, train_pairs), dev=paired(data.dev, dev_pairs))

    assert reads_of(mixed) is reads
