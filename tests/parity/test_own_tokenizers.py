"""Models with tokens or a first space that their base has not: refused with advice that works."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from transformers import AutoTokenizer, DebertaV2Tokenizer, PreTrainedModel, pipeline

from doubles.checkpoints import save_checkpoint
from doubles.imported import answers
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from doubles.trained_tokenizers import TokenizerFamily, published
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import UnsupportedBackboneError, load_backbone
from nunatak_model.tokenizer_settings import check_settings

TOKENIZERS: Any = AutoTokenizer
DEBERTA: Any = DebertaV2Tokenizer
PIPELINE: Any = pipeline
TEXTS = ["Ada wrote it in London.", "I saw a report that Bob wrote", "a <new> copy <more>!"]
ADVICE = "with its own folder as the backbone (--backbone)"


def base_with(tokenizer: Any, folder: Path, *, family: Any) -> TwinFactory:  # noqa: ANN401 - untyped
    options = {"vocab_size": len(tokenizer), "max_position_embeddings": 130}
    factory = TwinFactory(folder, family=family, options=options)
    tokenizer.save_pretrained(folder)
    factory.backbone = load_backbone(folder)
    return factory


def check_scores(folder: Path, ours: list[list[dict[str, Any]]]) -> None:
    theirs = PIPELINE("text-classification", model=str(folder), top_k=None)
    for answer, expected in zip(ours, theirs(TEXTS), strict=True):
        scores = {it["label"]: it["score"] for it in answer}
        assert scores == pytest.approx({it["label"]: it["score"] for it in expected}, abs=1e-5)


def check_tokens(folder: Path, ours: list[list[dict[str, Any]]]) -> None:
    theirs = PIPELINE("token-classification", model=str(folder), ignore_labels=[])
    for answer, expected in zip(ours, theirs(TEXTS), strict=True):
        places = [(it["start"], it["end"], it["entity"]) for it in answer]
        assert places == [(it["start"], it["end"], it["entity"]) for it in expected]
        scores = [it["score"] for it in answer]
        assert scores == pytest.approx([float(it["score"]) for it in expected], abs=1e-5)


@pytest.mark.parametrize("family", [TokenizerFamily.XLM_ROBERTA, TokenizerFamily.CAMEMBERT])
def test_pieces_without_a_first_space_are_refused_unless_the_tokenizer_has_none(
    family: TokenizerFamily, tmp_path: Path
) -> None:
    named = {"xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}[family]
    base = base_with(published(family), tmp_path, family="roberta").folder
    edit(base / "tokenizer_config.json", {"tokenizer_class": named, "add_prefix_space": False})

    with pytest.raises(UnsupportedBackboneError, match="add_prefix_space=False"):
        load_backbone(base)

    definition = (base / "tokenizer.json").read_text()
    never = definition.replace('"prepend_scheme": "always"', '"prepend_scheme": "never"')
    (base / "tokenizer.json").write_text(never)
    assert load_backbone(base)


@pytest.mark.parametrize("option", ["do_lower_case", "split_by_punct"])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_an_option_of_deberta_that_its_tokenizer_lacks_is_refused(
    option: str, *, saved: bool, named: bool
) -> None:
    definition = DEBERTA(**{option: saved}).backend_tokenizer.to_str()
    settings = {"tokenizer_class": "DebertaV2Tokenizer", option: named}

    with (
        nullcontext()
        if saved == named
        else pytest.raises(UnsupportedBackboneError, match=r"DebertaV2Tokenizer puts another")
    ):
        check_settings({}, settings, json.loads(definition))


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_normalizer_in_whose_place_deberta_puts_its_own_is_refused(*, lowercase: bool) -> None:
    definition = json.loads(DEBERTA(do_lower_case=lowercase).backend_tokenizer.to_str())
    settings = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": lowercase}
    check_settings({}, settings, definition)
    definition["normalizer"]["normalizers"].insert(0, {"type": "NFKC"})

    with pytest.raises(UnsupportedBackboneError, match="DebertaV2Tokenizer puts another"):
        check_settings({}, settings, definition)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert"])
def test_lower_case_that_the_class_of_transformers_drops_is_refused(
    family: TokenizerFamily, tmp_path: Path
) -> None:
    saved = published(family)
    saved.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    check_settings({}, settings, definition)
    definition["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))

    read = TOKENIZERS.from_pretrained(tmp_path)

    assert read.tokenize("ADA") == saved.tokenize("ADA") != saved.tokenize("ada")
    with pytest.raises(UnsupportedBackboneError, match="puts another normalizer"):
        check_settings({}, settings, definition)


def test_a_model_with_added_tokens_is_imported_on_its_own_folder(tmp_path: Path) -> None:
    base = base_with(published(TokenizerFamily.BERT), tmp_path / "base", family="bert")
    tuned = tmp_path / "tuned"
    twin = save_checkpoint(base, tuned, method=TopK(num_layers=1))
    tokenizer = TOKENIZERS.from_pretrained(base.folder)
    tokenizer.add_tokens(["<new>", "<more>"])
    model = cast("PreTrainedModel", twin.model)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tuned)  # pyright: ignore[reportUnknownMemberType] - untyped options
    tokenizer.save_pretrained(tuned)
    added, had = len(tokenizer), base.backbone.config.vocab_size
    assert added == had + 2

    with raises("unsupported_import", match=re.escape(ADVICE)) as refused:
        import_transformers(Checkpoint(tuned), base.backbone)
    own = load_backbone(tuned)

    assert f"have {added} tokens" in str(refused.value)
    assert f"have {had} (tokens were added" in str(refused.value)
    assert isinstance(import_transformers(Checkpoint(tuned), own).spec.method, HeadOnly)
    check_scores(tuned, answers(tuned, own, TEXTS))


@pytest.mark.parametrize("kind", [HeadKind.SEQUENCE_CLASSIFICATION, HeadKind.TOKEN_CLASSIFICATION])
def test_a_model_that_reads_a_first_space_is_imported_on_a_base_that_does(
    tmp_path: Path, kind: HeadKind
) -> None:
    base = base_with(published(TokenizerFamily.ROBERTA), tmp_path / "base", family="roberta")
    spaced = TOKENIZERS.from_pretrained(base.folder, add_prefix_space=True)
    tuned = tmp_path / "tuned"
    save_checkpoint(base, tuned, method=TopK(num_layers=1), kind=kind)
    spaced.save_pretrained(tuned)
    copied = tmp_path / "copy"
    copied.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copied / name).write_bytes((base.folder / name).read_bytes())
    spaced.save_pretrained(copied)

    with raises("unsupported_import", match="add_prefix_space") as refused:
        import_transformers(Checkpoint(tuned), base.backbone)
    copy, own = load_backbone(copied), load_backbone(tuned)

    assert ADVICE in str(refused.value)
    assert "copy of the backbone's folder" in str(refused.value)
    assert import_transformers(Checkpoint(tuned), copy).spec.method == TopK(num_layers=1)
    parameters: dict[str, object] | None = {"ignore_labels": []} if kind.reads_tokens else None
    check = check_tokens if kind.reads_tokens else check_scores
    for backbone in (copy, own):
        check(tuned, answers(tuned, backbone, TEXTS, parameters=parameters))
