"""Slow and SentencePiece tokenizers of added backbones read texts as transformers reads them."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import sentencepiece
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from doubles.backbones import tiny_config
from doubles.refusals import raises
from doubles.trained_tokenizers import PIECES, SENTENCES
from nunatak_exchange.backbones import add_backbone
from nunatak_model import load_backbone

TEXTS = [*SENTENCES, *(piece for piece in PIECES if piece.strip() and "\x00" not in piece)]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def sentence_pieces(size: int) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=written,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()


def checkpoint(folder: Path, model_type: str, vocab_size: int) -> Path:
    """Write configuration and weights, without a tokenizer."""
    raw = tiny_config(num_layers=2, family="roberta") | {"vocab_size": vocab_size}
    raw.pop("model_type")
    config = cast("Any", AutoConfig).for_model(model_type, **raw)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


def pieces_of(folder: Path) -> int:
    (folder / "sentencepiece.bpe.model").write_bytes(sentence_pieces(300))
    return 320


def merges_of(folder: Path) -> int:
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(SENTENCES * 5, vocab_size=400, special_tokens=special)
    trained.save_model(str(folder))
    return trained.get_vocab_size()


@pytest.mark.parametrize(
    ("model_type", "written"),
    [("xlm-roberta", pieces_of), ("camembert", pieces_of), ("roberta", merges_of)],
)
def test_pieces_and_merges_become_a_tokenizer_of_the_same_tokens(
    tmp_path: Path, model_type: str, written: Callable[[Path], int]
) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    checkpoint(folder, model_type, written(folder))
    theirs = cast("Any", AutoTokenizer).from_pretrained(folder)

    add_backbone(str(folder), name="mine")
    ours = load_backbone("mine").tokenizer

    for text in TEXTS:
        (found,) = ours.encode([text], max_length=10**6)
        assert list(found.token_ids) == theirs(text)["input_ids"], text


def test_a_folder_without_any_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    checkpoint(folder, "roberta", 100)

    with raises("unsupported_import", match="file of a tokenizer"):
        add_backbone(str(folder), name="mine")
