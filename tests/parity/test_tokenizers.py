"""Tokens, offsets, words and windows as transformers reads them, of families and of folders.

Folders have a `tokenizer.json`, or only its words, pieces or merges.
"""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import sentencepiece
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer, PreTrainedModel, pipeline

from doubles.backbones import SPECIAL, save_tiny_backbone
from doubles.checkpoints import save_checkpoint
from doubles.encoders import tiny_encoder
from doubles.imported import answers, check_scores
from doubles.published import TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from doubles.trained_tokenizers import (
    PIECES,
    SENTENCES,
    TokenizerFamily,
    published,
    random_texts,
    served,
)
from nunatak_contract.enums import HeadKind
from nunatak_contract.methods import HeadOnly, TopK
from nunatak_exchange.backbones import add_backbone
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import Alignment, Encoding, TextInput, UnsupportedBackboneError, load_backbone
from nunatak_model.tokenizer_folder import read_tokenizer

TOKENIZERS: Any = AutoTokenizer
PIPELINE: Any = pipeline
READ: list[TextInput] = [
    "Ada wrote it in LONDON.",
    "\u0130stanbul, na\u00efve \ufb01ne caf\u00e9s,\n\n isn't it  ",
    "\u6771\u4eac and [MASK] <s> </s> [SEP]!",
    ("who wrote it?", "Bob, in 1843"),
]
TEXTS = ["Ada wrote it in London.", "I saw a report that Bob wrote", "a <new> copy <more>!"]
ADVICE = "with its own folder as the backbone (--backbone)"


def base_with(tokenizer: Any, folder: Path, *, family: Any) -> TwinFactory:  # noqa: ANN401 - untyped
    options = {"vocab_size": len(tokenizer), "max_position_embeddings": 130}
    factory = TwinFactory(folder, family=family, options=options)
    tokenizer.save_pretrained(folder)
    factory.backbone = load_backbone(folder)
    return factory


def check_tokens(
    folder: Path, ours: Sequence[Sequence[Mapping[str, Any]]], texts: list[str]
) -> None:
    theirs = PIPELINE("token-classification", model=str(folder), ignore_labels=[])
    for answer, expected in zip(ours, theirs(texts), strict=True):
        places = [(it["start"], it["end"], it["entity"]) for it in answer]
        assert places == [(it["start"], it["end"], it["entity"]) for it in expected]
        scores = [it["score"] for it in answer]
        assert scores == pytest.approx([float(it["score"]) for it in expected], abs=1e-5)


CHANGES: dict[str, dict[str, object]] = {
    "as-saved": {},
    "lowercase": {"normalizer": {"type": "Lowercase"}},
    "composed": {"normalizer": {"type": "NFKC"}},
    "spaces": {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    "no-frame": {"post_processor": None},
}
"""Parts of `tokenizer.json` in whose place a class of transformers may put its own."""
SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "no-first-space": {"add_prefix_space": False},
    "first-space": {"add_prefix_space": True},
    "cased": {"do_lower_case": False},
    "accents": {"strip_accents": False},
    "general": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "ends": {"add_bos_token": True, "add_eos_token": True},
}


@pytest.mark.pairs
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_texts_have_the_tokens_of_transformers_whatever_file_says_so(
    family: TokenizerFamily, change: str, settings: str, tmp_path: Path
) -> None:
    tokenizer = published(family)
    tokenizer.save_pretrained(tmp_path)
    config = {"model_type": "bert" if family == "bert" else "roberta"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    edit(tmp_path / "tokenizer.json", CHANGES[change])
    edit(tmp_path / "tokenizer_config.json", SETTINGS[settings])
    theirs = TOKENIZERS.from_pretrained(tmp_path)

    ours = read_tokenizer(tmp_path, config, num_token_types=2)

    for text, found in zip(READ, ours.encode(READ, max_length=500), strict=True):
        read = theirs(*((text,) if isinstance(text, str) else text))
        assert list(found.token_ids) == read["input_ids"]
        assert list(found.type_ids) == read.get("token_type_ids", [0] * found.num_tokens)


def test_a_tokenizer_json_that_is_read_as_it_is_keeps_its_spelling(tmp_path: Path) -> None:
    published(TokenizerFamily.BERT).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    spelled = json.dumps(json.loads(path.read_text()), indent=7)
    path.write_text(spelled)

    config = {"model_type": "bert"}
    assert read_tokenizer(tmp_path, config, num_token_types=2).definition == spelled

    edit(path, {"normalizer": {"type": "NFKC"}})
    assert '"NFKC"' not in read_tokenizer(tmp_path, config, num_token_types=2).definition


def test_a_model_with_added_tokens_is_imported_on_its_own_folder(tmp_path: Path) -> None:
    base = base_with(published(TokenizerFamily.BERT), tmp_path / "base", family="bert")
    tuned = tmp_path / "tuned"
    twin = save_checkpoint(base, tuned, method=TopK(num_layers=1))
    tokenizer = TOKENIZERS.from_pretrained(base.folder)
    tokenizer.add_tokens(["<new>", "<more>"])
    model = cast("PreTrainedModel", twin.model)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tuned)
    tokenizer.save_pretrained(tuned)
    added, had = len(tokenizer), base.backbone.config.vocab_size
    assert added == had + 2

    with raises("unsupported_import", match=re.escape(ADVICE)) as refused:
        import_transformers(Checkpoint(tuned), base.backbone)
    own = load_backbone(tuned)

    assert f"have {added} tokens" in str(refused.value)
    assert f"have {had} (tokens were added" in str(refused.value)
    assert isinstance(import_transformers(Checkpoint(tuned), own).spec.method, HeadOnly)
    check_scores(tuned, answers(tuned, own, TEXTS), TEXTS)


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
        check(tuned, answers(tuned, backbone, TEXTS, parameters=parameters), TEXTS)


MANY = random_texts(200)
PAIRS = [(f"Q {text[:8]}", other) for text, other in zip(MANY, MANY[::-1], strict=True)]
INPUTS: dict[str, list[TextInput]] = {"texts": list(MANY), "pairs": list(PAIRS)}


def windows_of_transformers(
    family: TokenizerFamily, kind: str, *, max_length: int, stride: int
) -> Any:  # noqa: ANN401 - untyped there
    columns = [MANY] if kind == "texts" else [list(column) for column in zip(*PAIRS, strict=True)]
    return published(family)(
        *columns,
        truncation="only_first" if kind == "texts" else "only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def alignment_of(window: Encoding) -> Alignment:
    assert window.alignment is not None
    return window.alignment


@pytest.mark.pairs
# In every case, the question leaves more than half of the shortest window to the context.
@pytest.mark.parametrize(("kind", "max_length"), [("texts", 24), ("pairs", 90), ("texts", 1024)])
@pytest.mark.parametrize("stride", [0, 7])
@pytest.mark.parametrize("family", TokenizerFamily)
def test_windows_match_transformers(
    family: TokenizerFamily, stride: int, kind: str, max_length: int
) -> None:
    expected = windows_of_transformers(family, kind, max_length=max_length, stride=stride)

    found = served(family).encode_windows(INPUTS[kind], max_length=max_length, stride=stride)

    owners = [text for text, windows in enumerate(found) for _ in windows]
    assert owners == expected["overflow_to_sample_mapping"]
    flat = [window for windows in found for window in windows]
    assert [list(it.token_ids) for it in flat] == expected["input_ids"]
    types = expected.get("token_type_ids", [[0] * it.num_tokens for it in flat])
    assert [list(it.type_ids) for it in flat] == types
    assert [list(alignment_of(it).offsets) for it in flat] == expected["offset_mapping"]
    for place, window in enumerate(flat):
        assert list(alignment_of(window).text_ids) == expected.sequence_ids(place)
        assert list(alignment_of(window).word_ids) == expected.word_ids(place)


@pytest.mark.parametrize("family", TokenizerFamily)
def test_a_text_of_one_window_has_the_tokens_that_a_classifier_reads(
    family: TokenizerFamily,
) -> None:
    tokenizer = served(family)
    plain = tokenizer.encode([*MANY, *PAIRS], max_length=1024)

    found = tokenizer.encode_windows([*MANY, *PAIRS], max_length=1024, stride=0)

    assert [list(windows) for windows in found] == [[encoding] for encoding in plain]


WRITTEN: list[TextInput] = [
    "Where is my Parcel?",
    "Ünïcode ÉTÉ naïve",
    "東京 and 京都\u3000!",
    "tabs\tand\r\nlines \x07 [MASK] [SEP] x",
    ("who wrote it?", "It was written in 1843, by Ada."),
    "z" * 120,
]
WORD_SETTINGS: dict[str, dict[str, object]] = {
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


@pytest.mark.parametrize("name", WORD_SETTINGS)
def test_texts_have_the_tokens_that_transformers_makes_of_the_vocabulary(
    factory: TwinFactory, tmp_path: Path, name: str
) -> None:
    folder = with_words_alone(saved_base(factory, tmp_path / "base"), WORD_SETTINGS[name])
    theirs = TOKENIZERS.from_pretrained(folder)

    backbone = load_backbone(folder)

    for text, found in zip(WRITTEN, backbone.tokenizer.encode(WRITTEN, max_length=60), strict=True):
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
