"""Imported folders of AdapterHub give the logits of `adapters` itself.

The folders and the logits lie in `tests/interchange_fixtures`, written by `adapters` in a separate
environment (`tests/interchange_fixtures/regenerate`), because `adapters` needs an older
transformers.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from doubles.backbones import Family, encoded, tiny_backbone
from doubles.checkpoints import loaded_import
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.methods import Bottleneck
from nunatak_exchange.adapterhub_import import import_adapterhub
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.importing import import_folder
from nunatak_model import Backbone, Branch, Row, build_branch, forward

FOLDERS = Path(__file__).parents[1] / "interchange_fixtures" / "adapterhub"
EXPECTED: dict[str, Any] = json.loads((FOLDERS / "expected.json").read_text())
ENCODINGS = [encoded(tokens) for tokens in EXPECTED["tokens"]]
ANY_BASE = ImportChoices(allows_other_base=True)
CASES = sorted(EXPECTED["logits"])
TOLERANCE = 1e-5
NUM_LAYERS = 2


@pytest.fixture(scope="module")
def backbones() -> dict[str, Backbone]:
    families: tuple[Family, ...] = ("bert", "roberta")
    return {family: tiny_backbone(family=family, num_layers=NUM_LAYERS) for family in families}


def branch_of(case: str, backbone: Backbone) -> Branch:
    """The branch of the imported task, drafted and loaded as any other."""
    imported = import_folder(Checkpoint(FOLDERS / case), backbone, choices=ANY_BASE)
    return loaded_import(imported, backbone).branch


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_folders_of_all_kinds_answer_in_a_mixed_batch_as_each_in_adapters(
    family: str, backbones: dict[str, Backbone]
) -> None:
    backbone = backbones[family]
    cases = [case for case in CASES if case.startswith(family)]
    branches = {case: branch_of(case, backbone) for case in cases}
    questions = [(case, index) for case in cases for index in range(len(ENCODINGS))]
    random.Random(0).shuffle(questions)

    with torch.inference_mode():
        answers = forward(
            backbone,
            [Row(encoding=ENCODINGS[index], branch=branches[case]) for case, index in questions],
        )

    for (case, index), answer in zip(questions, answers, strict=True):
        expected = torch.tensor(EXPECTED["logits"][case][index])
        assert (answer - expected).abs().max().item() <= TOLERANCE, case


def test_the_fixtures_differ_from_their_bare_heads(backbones: dict[str, Backbone]) -> None:
    """Guards the oracle: with adapters that change little, parity would prove nothing."""
    for case in CASES:
        backbone = backbones[case.partition("-")[0]]
        imported = import_adapterhub(Checkpoint(FOLDERS / case), backbone)
        idle = {
            name: tensor * (0.0 if ".up." in name else 1.0)
            for name, tensor in imported.parameters.items()
        }
        branch = build_branch(imported.spec, backbone.config, idle)
        with torch.inference_mode():
            (answer, *_) = forward(backbone, [Row(encoding=ENCODINGS[0], branch=branch)])
        expected = torch.tensor(EXPECTED["logits"][case][0])
        assert (answer - expected).abs().max().item() > 1e-2, case


def test_layers_sizes_heads_and_labels_match_the_folder(backbones: dict[str, Backbone]) -> None:
    left_out, sizes, tags, several, number = (
        import_adapterhub(Checkpoint(FOLDERS / case), backbones[case.partition("-")[0]])
        for case in (
            *("bert-houlsby-left-out", "bert-pfeiffer-sizes-by-layer", "roberta-pfeiffer"),
            *("bert-houlsby-multi-label", "bert-attention-alone"),
        )
    )

    assert left_out.spec.split_depth(backbones["bert"].config) == 1
    assert isinstance(sizes.spec.method, Bottleneck)
    assert sizes.spec.method.size == 5
    assert tags.spec.head.kind is HeadKind.TOKEN_CLASSIFICATION
    assert tags.labels == ("label 0", "label 1", "label 2", "label 3")
    assert tags.problem_type is None
    assert several.problem_type is ProblemType.MULTI_LABEL
    assert number.labels == ("label 0",)
    assert number.problem_type is ProblemType.REGRESSION
