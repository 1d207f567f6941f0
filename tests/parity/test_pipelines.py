"""Entities, exported folders and imported models against transformers' pipelines, or a refusal."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    TokenClassificationPipeline,
    pipeline,
)
from transformers.pipelines.token_classification import AggregationStrategy as PipelineStrategy

from doubles.backbones import Family, save_tiny_backbone, tiny_config, tiny_tokenizer
from doubles.checkpoints import loaded_import, save_checkpoint
from doubles.imported import answers, check_scores
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from doubles.trained_tokenizers import TokenizerFamily, published, random_texts, served
from nunatak_contract.enums import AggregationStrategy, HeadKind, ProblemType
from nunatak_contract.methods import TopK
from nunatak_contract.requests import Parameters
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.importing import import_folder
from nunatak_exchange.transformers_export import export_transformers
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import Backbone, UnsupportedBackboneError, load_backbone
from nunatak_model.architectures import ARCHITECTURES, config_from
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


CONFIGS: Any = AutoConfig
INPUTS: list[dict[str, str]] = [
    {"text": "where is my parcel?"},
    {"text": "who wrote it?", "text_pair": "it was written in 1843."},
    {"text": "a text that is longer than forty tokens, of which there is one a character"},
]
BERT = {"tokenizer_class": "BertTokenizer"}
GENERAL = {"tokenizer_class": "PreTrainedTokenizerFast"}
UNNAMED = {"model_input_names": ...}
TYPES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
NO_TYPES = {"model_input_names": ["input_ids", "attention_mask"]}


@pytest.mark.parametrize(
    ("num_labels", "problem_type", "settings"),
    [
        (1, None, {}),
        (1, ProblemType.MULTI_LABEL, {}),
        (1, ProblemType.REGRESSION, {}),
        (3, None, {}),
        (3, ProblemType.SINGLE_LABEL, {}),
        (3, ProblemType.MULTI_LABEL, {}),
        pytest.param(3, None, {"model_max_length": ..., "max_len": 20}, id="length-of-old"),
        pytest.param(3, None, {**GENERAL, **TYPES, "do_lower_case": False}, id="general-class"),
    ],
)
def test_scores_match_the_pipeline(
    bert: TwinFactory,
    tmp_path: Path,
    num_labels: int,
    problem_type: ProblemType | None,
    settings: Mapping[str, object],
) -> None:
    save_checkpoint(
        bert, tmp_path, method=TopK(num_layers=1), num_labels=num_labels, problem_type=problem_type
    )
    edit(tmp_path / "tokenizer_config.json", settings)

    check_scores(tmp_path, answers(tmp_path, bert.backbone, INPUTS), INPUTS)


@pytest.mark.parametrize(
    "setting",
    [{"return_dict": False}, {"torchscript": True}, {"chunk_size_feed_forward": 7}],
    ids=str,
)
def test_settings_of_the_form_of_an_answer_change_nothing(
    bert: TwinFactory, tmp_path: Path, setting: Mapping[str, object]
) -> None:
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1))
    before = import_transformers(Checkpoint(tmp_path), bert.backbone)
    edit(tmp_path / "config.json", setting)

    after = import_transformers(Checkpoint(tmp_path), bert.backbone)

    assert after.source == before.source
    assert all(torch.equal(after.parameters[name], it) for name, it in before.parameters.items())


def test_the_caller_may_say_that_one_logit_is_a_number(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path, num_labels=1)
    choices = ImportChoices(problem_type=ProblemType.REGRESSION)

    ours = answers(tmp_path, bert.backbone, INPUTS, choices=choices)

    edit(tmp_path / "config.json", {"problem_type": "regression"})
    check_scores(tmp_path, ours, INPUTS)


@pytest.mark.parametrize(
    "settings",
    [BERT | UNNAMED, GENERAL | UNNAMED, GENERAL | TYPES, NO_TYPES],
    ids=["own", "general", "named", "none"],
)
def test_pairs_have_the_token_types_that_the_tokenizer_gives(
    bert: TwinFactory, tmp_path: Path, settings: Mapping[str, object]
) -> None:
    save_checkpoint(bert, tmp_path / "tuned", method=TopK(num_layers=1))
    edit(tmp_path / "tuned" / "tokenizer_config.json", settings)
    base = save_tiny_backbone(tmp_path / "base", is_added=False)
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (base / file).write_bytes((bert.folder / file).read_bytes())
    edit(base / "tokenizer_config.json", settings)
    backbone = load_backbone(base)

    ours = answers(tmp_path / "tuned", backbone, INPUTS)

    check_scores(tmp_path / "tuned", ours, INPUTS)
    gives_types = settings in (BERT | UNNAMED, GENERAL | TYPES)
    assert (backbone.digest == bert.backbone.digest) == gives_types
    if not gives_types:
        with raises("foreign_backbone", match="gives none to the texts of a pair"):
            import_transformers(Checkpoint(tmp_path / "tuned"), bert.backbone)


OTHERWISE: dict[str, tuple[Mapping[str, object], str]] = {
    "cut-on-the-left": ({"truncation_side": "left"}, "truncation_side='left'"),
    "upper-case": (BERT | {"do_lower_case": False}, "normalizer"),
    "accents": (BERT | {"strip_accents": False}, "normalizer"),
    "ideographs": (BERT | {"tokenize_chinese_chars": False}, "normalizer"),
    "special-as-text": ({"split_special_tokens": True}, "split_special_tokens=True"),
    "more": ({"additional_special_tokens": ["<new>"]}, "added_tokens"),
    "added": ({"added_tokens_decoder": {"101": {"content": "<new>"}}}, "added_tokens"),
    "named": ({"extra_special_tokens": {"new_token": "<new>"}}, "added_tokens"),
    "first": (BERT | {"cls_token": "<s>"}, "added_tokens"),
    "ends": (BERT | {"cls_token": "[SEP]", "sep_token": "[CLS]"}, "post_processor"),
    "unknown": (BERT | {"unk_token": "[MASK]"}, "vocabulary"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_model_with_a_setting_that_the_tokenizer_lacks_is_refused_on_this_base(
    bert: TwinFactory, tmp_path: Path, name: str
) -> None:
    settings, named = OTHERWISE[name]
    save_checkpoint(bert, tmp_path / "tuned")
    edit(tmp_path / "tuned" / "tokenizer_config.json", settings)

    code = "unsupported_import" if "=" in named else "foreign_backbone"
    with raises(code, match=named):
        import_transformers(Checkpoint(tmp_path / "tuned"), bert.backbone)


@pytest.mark.parametrize("name", ["cut-on-the-left", "special-as-text", "more", "added", "first"])
def test_a_base_with_tokens_that_it_cannot_read_is_refused(tmp_path: Path, name: str) -> None:
    settings, named = OTHERWISE[name]
    base = save_tiny_backbone(tmp_path / "base", is_added=False)
    edit(base / "tokenizer_config.json", settings)

    with pytest.raises(UnsupportedBackboneError, match=f"{named}|'<new>'|'<s>'"):
        load_backbone(base)


def test_texts_that_the_tokenizer_itself_cuts_on_the_left_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_backbone(tmp_path, is_added=False)
    definition = json.loads((folder / "tokenizer.json").read_text())
    cut = {"direction": "Left", "max_length": 20, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps({**definition, "truncation": cut}))

    with pytest.raises(UnsupportedBackboneError, match="truncation_side='left'"):
        load_backbone(folder)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_fields_that_are_left_out_have_the_defaults_of_transformers(model_type: str) -> None:
    whole = {**CONFIGS.for_model(model_type).to_dict(), "position_embedding_type": None}

    assert config_from({"model_type": model_type}) == config_from(whole)
    for name in whole.keys() - {"model_type"}:
        sparse = {other: it for other, it in whole.items() if other != name}
        assert config_from(sparse) == config_from(whole), name


@pytest.mark.parametrize(
    ("spelling", "plain"),
    [
        ("swish", "silu"),
        ("gelu_python", "gelu"),
        ("gelu_fast", "gelu_new"),
        ("gelu_pytorch_tanh", "gelu_new"),
    ],
)
def test_an_activation_has_every_name_that_transformers_gives_it(spelling: str, plain: str) -> None:
    from transformers.activations import ACT2FN  # noqa: PLC0415 - needed here alone

    table: Any = ACT2FN
    points = torch.linspace(-6, 6, 101)
    torch.testing.assert_close(table[spelling](points), table[plain](points), atol=1e-6, rtol=0)
    raw = {**CONFIGS.for_model("bert").to_dict(), "hidden_act": spelling}
    assert config_from(raw) == config_from({**raw, "hidden_act": plain})
