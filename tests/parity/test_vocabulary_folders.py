"""Folders without `tokenizer.json`, against transformers' own tokenizers: words, pieces, merges."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer

from doubles.backbones import SPECIAL, save_tiny_backbone
from doubles.checkpoints import save_checkpoint
from doubles.encoders import tiny_encoder
from doubles.imported import answers, check_scores
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.trained_tokenizers import PIECES, SENTENCES
from nunatak_contract.methods import TopK
from nunatak_exchange.backbones import add_backbone
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import TextInput, UnsupportedBackboneError, load_backbone

TOKENIZERS: Any = AutoTokenizer
TEXTS: list[TextInput] = [
    "Where is my Parcel?",
    "Ünïcode ÉTÉ naïve",
    "東京 and 京都\u3000!",
    "tabs\tand\r\nlines \x07 [MASK] [SEP] x",
    ("who wrote it?", "It was written in 1843, by Ada."),
    "z" * 120,
]
SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "cased": {"do_lower_case": False},
    "accents": {"strip_accents": False},
    "ideographs": {"tokenize_chinese_chars": False},
    "listed": {
        "added_tokens_decoder": {
            str(index): {"content": token, "special": True, "normalized": False}
            for index, token in enumerate(SPECIAL["bert"])
        }
    },
    "named": {"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]", "do_lower_case": False},
}
WORDS = [
    *SPECIAL["bert"],
    *"abcdefghijklmnopqrstuvwxyzAEIZ0123456789.,!?é京東",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789é"),
]


def with_words_alone(folder: Path, settings: Mapping[str, object]) -> Path:
    """Replace `tokenizer.json` by the vocabulary, which is as long as the embeddings."""
    (folder / "tokenizer.json").unlink(missing_ok=True)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    unused = [f"[unused{index}]" for index in range(size - len(WORDS))]
    (folder / "vocab.txt").write_text("\n".join([*WORDS, *unused]) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> TwinFactory:
    return TwinFactory(
        tmp_path_factory.mktemp("bert"), family="bert", options={"vocab_size": len(WORDS) + 12}
    )


def saved_base(factory: TwinFactory, folder: Path) -> Path:
    """The base of a factory with weights alone."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((factory.folder / name).read_bytes())
    return folder


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_have_the_tokens_that_transformers_makes_of_the_vocabulary(
    factory: TwinFactory, tmp_path: Path, name: str
) -> None:
    folder = with_words_alone(saved_base(factory, tmp_path / "base"), SETTINGS[name])
    theirs = TOKENIZERS.from_pretrained(folder)

    backbone = load_backbone(folder)

    for text, found in zip(TEXTS, backbone.tokenizer.encode(TEXTS, max_length=60), strict=True):
        pair = (text,) if isinstance(text, str) else text
        expected = theirs(*pair, truncation=True, max_length=60)
        assert list(found.token_ids) == expected["input_ids"]
        assert list(found.type_ids) == expected["token_type_ids"]
    ours = json.loads(backbone.tokenizer.definition)
    assert ours == json.loads(theirs.backend_tokenizer.to_str()) | {
        "truncation": None,
        "padding": None,
    }


def test_a_model_that_was_saved_with_its_vocabulary_alone_is_imported(
    factory: TwinFactory, tmp_path: Path
) -> None:
    base = with_words_alone(saved_base(factory, tmp_path / "base"), {})
    save_checkpoint(factory, tmp_path / "tuned", method=TopK(num_layers=1))
    with_words_alone(tmp_path / "tuned", {})
    TOKENIZERS.from_pretrained(base).save_pretrained(base)
    (base / "vocab.txt").unlink(missing_ok=True)
    texts = ["where is my parcel?", "Who wrote it, in 1843?"]

    ours = answers(tmp_path / "tuned", load_backbone(base), texts)

    check_scores(tmp_path / "tuned", ours, texts)


@pytest.mark.parametrize(
    ("file", "content", "token"),
    [
        ("added_tokens.json", {"<new>": 101}, "<new>"),
        ("special_tokens_map.json", {"cls_token": "<s>"}, "<s>"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"101": {"content": "<new>"}}}, "<new>"),
        ("tokenizer_config.json", {"additional_special_tokens": ["<new>"]}, "<new>"),
    ],
)
def test_tokens_without_an_embedding_are_refused_by_name(
    factory: TwinFactory, tmp_path: Path, file: str, content: dict[str, object], token: str
) -> None:
    folder = with_words_alone(saved_base(factory, tmp_path / "base"), {})
    (folder / file).write_text(json.dumps(content))

    with pytest.raises(UnsupportedBackboneError, match=f"embeddings, got 1 more .'{token}'"):
        load_backbone(folder)


def test_a_folder_with_neither_says_how_to_get_a_tokenizer(
    factory: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(factory, tmp_path / "tuned")
    (tmp_path / "tuned" / "tokenizer.json").unlink()
    roberta = save_tiny_backbone(tmp_path / "roberta", family="roberta")
    (roberta / "tokenizer.json").rename(roberta / "vocab.json")

    with raises("unsupported_import", match="save_pretrained"):
        import_transformers(Checkpoint(tmp_path / "tuned"), factory.backbone)
    with pytest.raises(UnsupportedBackboneError, match="save_pretrained"):
        load_backbone(roberta)
    with pytest.raises(UnsupportedBackboneError, match="file of a tokenizer, got none"):
        load_backbone(saved_base(factory, tmp_path / "bare"))


SPELT = [*SENTENCES, *(piece for piece in PIECES if piece.strip() and "\x00" not in piece)]


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, written: Callable[[Path], int]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "base"
    folder.mkdir()
    changes = {"model_type": model_type, "vocab_size": written(folder)}
    tiny_encoder("roberta", changes).save_pretrained(folder)
    theirs = TOKENIZERS.from_pretrained(folder)

    add_backbone(str(folder), name="mine")
    ours = load_backbone("mine").tokenizer

    for text in SPELT:
        (found,) = ours.encode([text], max_length=10**6)
        assert list(found.token_ids) == theirs(text)["input_ids"], text
