"""Entities against transformers' pipeline, family by family."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification, TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy as PipelineStrategy

from doubles.backbones import tiny_config
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_contract.enums import AggregationStrategy
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.entities import find_entities
from nunatak_server.outputs.outputs import window_of

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC-X", "B-", "plain")
STRATEGIES = [it for it in AggregationStrategy if it is not AggregationStrategy.WORD]
MAX_LENGTH, STRIDE = 24, 6
TEXTS = [
    "ann met bob.",
    "Ann-Marie O'Neil, of st. john's; and co!",
    "x",
    "  two   spaces, \u20ac and d\u20ac  end ",
    "one text that goes on and on, for ever and ever, until nobody in sight can hold it whole.",
    *random_texts(8, seed=1, longest=25),
]
# Without aggregation of tokens, the pipeline has no windows.
CASES = [
    *((strategy, 512) for strategy in STRATEGIES),
    *((it, MAX_LENGTH) for it in STRATEGIES if it is not AggregationStrategy.NONE),
]


@cache
def pipeline_of(family: TokenizerFamily) -> Any:  # noqa: ANN401 - untyped there
    """The pipeline with a family's tokenizer; the logits come from the test."""
    labels = dict(enumerate(LABELS))
    config = BertConfig(**tiny_config(num_layers=1, family="bert"), id2label=labels)  # pyrefly: ignore[bad-argument-type]
    model = BertForTokenClassification(config)
    return TokenClassificationPipeline(model=model, tokenizer=published(family))


def entities_of_both(
    family: TokenizerFamily,
    text: str,
    strategy: AggregationStrategy,
    ignored: list[str],
    *,
    max_length: int,
) -> tuple[list[Any], list[Any]]:
    """The results of the pipeline and of our code for the same random logits."""
    ours = served(family)
    (encodings,) = ours.encode_windows([text], max_length=max_length, stride=STRIDE)
    pipeline = pipeline_of(family)
    windows = {"return_overflowing_tokens": True, "padding": True, "stride": STRIDE}
    inputs = list(
        pipeline.preprocess(
            text, is_split_into_words=False, tokenizer_params={**windows, "max_length": max_length}
        )
    )
    generator = torch.Generator().manual_seed(len(text))
    logits = [
        torch.randn(1, len(each["input_ids"][0]), len(LABELS), generator=generator) * 3
        for each in inputs
    ]
    outputs = [{**each, "logits": drawn} for each, drawn in zip(inputs, logits, strict=True)]
    expected = pipeline.postprocess(outputs, PipelineStrategy(strategy.value), ignored)
    if len(inputs) > 1 and expected and expected[0]["start"] == expected[0]["end"]:
        # With several windows, the pipeline lists the first entity twice if it has no characters.
        del expected[0]
    found = [
        window_of(encoding, [float(x) for x in drawn[0, : encoding.num_tokens].flatten()])
        for encoding, drawn in zip(encodings, logits, strict=True)
    ]
    options = Parameters(aggregation_strategy=strategy, ignore_labels=list(ignored))
    return expected, find_entities(found, labels=LABELS, join=ours.join, options=options)


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("ignored", [[], ["O", "PER", "B-LOC"]], ids=["none", "some"])
@pytest.mark.parametrize(("strategy", "max_length"), CASES)
@pytest.mark.parametrize("family", TokenizerFamily)
def test_entities_match_the_pipeline(
    family: TokenizerFamily, strategy: AggregationStrategy, max_length: int, ignored: list[str]
) -> None:
    for text in TEXTS:
        expected, found = entities_of_both(family, text, strategy, ignored, max_length=max_length)

        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(float(theirs["score"]), abs=1e-5)
            assert {**ours, "score": None} == {**theirs, "score": None}
