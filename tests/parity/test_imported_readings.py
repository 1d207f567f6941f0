"""Imported models read texts as transformers' pipelines do, or are refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from doubles.backbones import save_tiny_backbone
from doubles.checkpoints import save_checkpoint
from doubles.imported import answers, check_scores
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from nunatak_contract.enums import ProblemType
from nunatak_contract.methods import TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import UnsupportedBackboneError, load_backbone
from nunatak_model.architectures import ARCHITECTURES, config_from

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
