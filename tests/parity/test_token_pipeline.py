"""Labels of tokens against transformers' `TokenClassificationPipeline`, from tokens to entities."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
    TokenClassificationPipeline,
)
from transformers.pipelines.token_classification import AggregationStrategy as PipelineStrategy

from doubles.backbones import tiny_config, tiny_tokenizer
from nunatak_model import TextTokenizer
from nunatak_server.postprocess import (
    AggregationStrategy,
    EntityOptions,
    find_entities,
    window_of,
)

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC-X", "B-", "plain")
STRATEGIES = [it for it in AggregationStrategy if it is not AggregationStrategy.WORD]
MAX_LENGTH, STRIDE = 24, 6
TEXTS = [
    "ann met bob.",
    "Ann-Marie O'Neil, of st. john's; and co!",
    "x",
    "  two   spaces, \u20ac and d\u20ac  end ",
    "one text that goes on and on, for ever and ever, until nobody in sight can hold it whole.",
]


def marked_tokenizer() -> Tokenizer:
    """WordPiece, which marks the tokens inside a word and joins them again."""
    tokenizer = tiny_tokenizer("bert")
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def plain_tokenizer() -> Tokenizer:
    """WordPiece without a decoder: tokens are joined by spaces."""
    return tiny_tokenizer("bert")


def byte_tokenizer() -> Tokenizer:
    """Byte-level pairs as RoBERTa's, which have no marks inside words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["[PAD]", "[CLS]", "[SEP]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return tokenizer


TOKENIZERS = {"marked": marked_tokenizer, "plain": plain_tokenizer, "bytes": byte_tokenizer}


def pipeline_of(tokenizer: Tokenizer, *, max_length: int) -> Any:  # noqa: ANN401 - untyped there
    labels = dict(enumerate(LABELS))
    config = BertConfig(**tiny_config(num_layers=1, family="bert"), id2label=labels)  # pyright: ignore[reportArgumentType]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token="[PAD]",  # noqa: S106 - a token of a text
        unk_token="[UNK]",  # noqa: S106 - a token of a text
    )
    return TokenClassificationPipeline(model=BertForTokenClassification(config), tokenizer=fast)


def entities_of_both(
    make: str, text: str, strategy: AggregationStrategy, ignored: list[str], *, max_length: int
) -> tuple[list[Any], list[Any]]:
    """What the pipeline and our code make of the same random logits."""
    tokenizer = TOKENIZERS[make]()
    ours = TextTokenizer(tokenizer.to_str().encode(), num_token_types=2)
    (encodings,) = ours.encode_windows([text], max_length=max_length, stride=STRIDE)
    pipeline = pipeline_of(tokenizer, max_length=max_length)
    overlap = {"return_overflowing_tokens": True, "padding": True, "stride": STRIDE}
    inputs = list(pipeline.preprocess(text, is_split_into_words=False, tokenizer_params=overlap))
    generator = torch.Generator().manual_seed(len(text))
    logits = [
        torch.randn(1, len(each["input_ids"][0]), len(LABELS), generator=generator) * 3
        for each in inputs
    ]
    outputs = [{**each, "logits": drawn} for each, drawn in zip(inputs, logits, strict=True)]
    expected = pipeline.postprocess(outputs, PipelineStrategy(strategy.value), ignored)
    windows = [
        window_of(encoding, [float(x) for x in drawn[0, : encoding.num_tokens].flatten()])
        for encoding, drawn in zip(encodings, logits, strict=True)
    ]
    options = EntityOptions(aggregation=strategy, ignored_labels=frozenset(ignored))
    return expected, find_entities(windows, labels=LABELS, join=ours.join, options=options)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("max_length", [MAX_LENGTH, 512], ids=["windows", "whole"])
@pytest.mark.parametrize("ignored", [["O"], [], ["PER", "B-LOC"]], ids=["o", "none", "some"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", TOKENIZERS)
def test_entities_are_those_of_the_pipeline(
    make: str, strategy: AggregationStrategy, ignored: list[str], max_length: int
) -> None:
    for text in TEXTS:
        expected, found = entities_of_both(make, text, strategy, ignored, max_length=max_length)

        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(float(theirs["score"]), abs=1e-5)
            assert {**ours, "score": None} == {**theirs, "score": None}
