"""Exported folders in transformers' pipelines answer like the exported tasks."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, pipeline

from doubles.backbones import Family, tiny_tokenizer
from doubles.checkpoints import loaded_import, save_checkpoint
from doubles.imported import answers
from doubles.published import TwinFactory
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.importing import import_folder
from nunatak_exchange.transformers_export import export_transformers
from nunatak_model import Backbone, load_backbone

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
