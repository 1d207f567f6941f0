"""Entities and exported folders against transformers' pipelines."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    TokenClassificationPipeline,
    pipeline,
)
from transformers.pipelines.token_classification import AggregationStrategy as PipelineStrategy

from doubles.backbones import Family, tiny_config, tiny_tokenizer
from doubles.checkpoints import loaded_import, save_checkpoint
from doubles.imported import answers
from doubles.published import TwinFactory
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_contract.enums import AggregationStrategy, HeadKind
from nunatak_contract.methods import TopK
from nunatak_contract.requests import Parameters
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.importing import import_folder
from nunatak_exchange.transformers_export import export_transformers
from nunatak_model import Backbone, load_backbone
from nunatak_server.outputs.entities import find_entities
from nunatak_server.outputs.outputs import window_of

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC-X", "B-", "plain")
AGGREGATIONS = [it for it in AggregationStrategy if it is not AggregationStrategy.WORD]
MAX_LENGTH, STRIDE = 24, 6
SPELT = [
    "ann met bob.",
    "Ann-Marie O'Neil, of st. john's; and co!",
    "x",
    "  two   spaces, \u20ac and d\u20ac  end ",
    "one text that goes on and on, for ever and ever, until nobody in sight can hold it whole.",
    *random_texts(8, seed=1, longest=25),
]
# Without aggregation of tokens, the pipeline has no windows.
CASES = [
    *((strategy, 512) for strategy in AGGREGATIONS),
    *((it, MAX_LENGTH) for it in AGGREGATIONS if it is not AggregationStrategy.NONE),
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
    for text in SPELT:
        expected, found = entities_of_both(family, text, strategy, ignored, max_length=max_length)

        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(float(theirs["score"]), abs=1e-5)
            assert {**ours, "score": None} == {**theirs, "score": None}


PIPELINE: Any = pipeline
TOKENIZERS: Any = AutoTokenizer
TEXTS = [
    "ann met bob.",
    "ann \N{SNOW CAPPED MOUNTAIN}\N{SNOW CAPPED MOUNTAIN} met \u5c71\u672c in oslo",
    "\u00a7 7 of the \u20ac act, \u00b5",
    "d\u20ac and \u20acd",
]
STRATEGIES = ["none", "simple", "first", "average", "max"]
SPECIAL = ("unk", "cls", "sep", "mask", "pad", "bos", "eos")


def exported(folder: Path, backbone: Backbone, target: Path) -> Path:
    task = loaded_import(import_folder(Checkpoint(folder), backbone), backbone)
    export_transformers(task, target, backbone)
    return target


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_texts_with_unknown_tokens_have_the_same_entities_there(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(
        bert, tmp_path / "tuned", method=TopK(num_layers=1), kind=HeadKind.TOKEN_CLASSIFICATION
    )
    folder = exported(tmp_path / "tuned", bert.backbone, tmp_path / "exported")

    for strategy in STRATEGIES:
        theirs = PIPELINE("token-classification", model=str(folder), aggregation_strategy=strategy)
        wanted = {"aggregation_strategy": strategy}
        ours = answers(tmp_path / "tuned", bert.backbone, TEXTS, parameters=wanted)
        for text, found in zip(TEXTS, ours, strict=True):
            expected = theirs(text)
            assert [named(it) for it in found] == [named(it) for it in expected], strategy
            scores = [it["score"] for it in found]
            assert scores == pytest.approx([float(it["score"]) for it in expected], abs=1e-5)


def named(entity: dict[str, Any]) -> tuple[object, ...]:
    label = entity.get("entity_group") or entity.get("entity")
    return label, entity["word"], entity["start"], entity["end"]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_special_tokens_of_the_tokenizer_are_named(tmp_path: Path, family: Family) -> None:
    bert = TwinFactory(tmp_path / "base", family=family)
    tokenizer = tiny_tokenizer(family)
    names = [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    ]
    known = [name for name in names if tokenizer.token_to_id(name) is not None]
    tokenizer.add_special_tokens(known)
    tokenizer.save(str(tmp_path / "base" / "tokenizer.json"))
    backbone = load_backbone(bert.folder)
    save_checkpoint(bert, tmp_path / "tuned")
    (tmp_path / "tuned" / "tokenizer.json").write_text(backbone.tokenizer.definition)

    there = TOKENIZERS.from_pretrained(exported(tmp_path / "tuned", backbone, tmp_path / "out"))

    found = {name: getattr(there, f"{name}_token") for name in SPECIAL}
    wanted = {
        "bert": dict(zip(SPECIAL, ("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"), strict=False)),
        "roberta": dict(zip(SPECIAL, ("<unk>", "<s>", "</s>", "<mask>", "<pad>"), strict=False)),
    }[family]
    assert found == {**wanted, "bos": wanted["cls"], "eos": wanted["sep"]}
    assert len(there) == backbone.config.vocab_size
