"""The results of training do not depend on the family of the tokenizer."""

import pytest

from doubles.backbones import Family, tiny_backbone
from doubles.examples import name_questions
from doubles.trained_tokenizers import TokenizerFamily, published
from nunatak_contract.methods import Full
from nunatak_training.fitting import fit_task
from nunatak_training.kinds import Metric
from nunatak_training.recipes import default_recipe
from nunatak_training.report import Report

SHAPES: dict[TokenizerFamily, Family] = {
    TokenizerFamily.BERT: "bert",
    TokenizerFamily.ROBERTA: "roberta",
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
def test_answers_are_learned_on_every_shape(family: TokenizerFamily) -> None:
    tokenizer = published(family).backend_tokenizer
    backbone = tiny_backbone(num_layers=2, family=SHAPES[family], tokenizer=tokenizer)
    changes = {
        "epochs": 40,
        "min_steps": 0,
        "batch_size": 8,
        "max_length": 64,
        "learning_rate": 2e-3,
    }
    recipe = default_recipe(Full(), changes=changes)

    trained = fit_task(name_questions(), recipe, backbone, report=Report())

    assert trained.scores[Metric.EXACT_MATCH] >= 0.9
