"""Added backbones: the folder that serving opens, and the checkpoints that are refused."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import huggingface_hub.constants
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from doubles.adapter_folders import edit_json
from doubles.backbones import Family, save_tiny_backbone
from doubles.hostile_files import HOSTILE_CONFIGS, HOSTILE_TOKENIZERS, document, entry
from doubles.hubs import running_hub
from doubles.refusals import raises
from nunatak_contract.enums import Pooling
from nunatak_contract.errors import NunatakError
from nunatak_exchange.backbones import (
    AddedBackbone,
    add_backbone,
    list_backbones,
    read_backbone,
    verify_backbone,
)
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.hub import fetched
from nunatak_exchange.reference import (
    answers_of,
    check_answers,
    config_of,
    encoder_class,
    load_model,
    vector_branch,
)
from nunatak_model import load_backbone
from nunatak_model.checkpoint import added_backbones

Damage = Callable[[Path], object]
FAMILIES: tuple[Family, ...] = ("bert", "roberta", "modernbert")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert added_backbones().is_relative_to(tmp_path)
    return added_backbones()


def add(place: Path, name: str | None = None) -> AddedBackbone:
    return add_backbone(str(place), name=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_serving_can_open_keeps_its_digest(tmp_path: Path, family: Family) -> None:
    folder = save_tiny_backbone(tmp_path / "base", family=family, pooling=Pooling.MEAN)
    # A class of its own would rebuild the tokenizer from a vocabulary that this one does not have.
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if family == "bert" else [])]
    settings = {"tokenizer_class": "TokenizersBackend", "model_input_names": inputs}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    before = load_backbone(folder)

    added = add(folder, "mine")
    served = load_backbone("mine")

    assert added.digest == before.digest == served.digest
    assert (served.name, served.pooling) == ("mine", Pooling.MEAN)
    assert served.pooler is not None
    assert before.pooler is not None
    assert torch.equal(served.pooler.weight, before.pooler.weight)
    assert added.difference <= 1e-4


def test_the_folder_holds_no_more_than_serving_reads(tmp_path: Path, store: Path) -> None:
    folder = save_tiny_backbone(tmp_path / "base", pooling=Pooling.MEAN)
    (folder / "modeling_own.py").write_text("raise SystemExit")
    edit_json(folder / "config.json", {"auto_map": {"AutoModel": "modeling_own.Own"}})
    tensors = load_file(folder / "model.safetensors")
    kept = {f"bert.{name}": it for name, it in tensors.items()}
    save_file({**kept, "cls.predictions.bias": torch.zeros(3)}, folder / "model.safetensors")

    add(folder)

    made = store / "base"
    files = {str(it.relative_to(made)) for it in made.rglob("*") if it.is_file()}
    assert files == {
        *("config.json", "tokenizer.json", "tokenizer_config.json"),
        *("model.safetensors", "backbone.json"),
        "1_Pooling/config.json",
    }
    assert load_file(made / "model.safetensors").keys() == tensors.keys()
    assert "auto_map" not in json.loads((made / "config.json").read_text())


def test_shards_and_half_precision_keep_the_digest(tmp_path: Path) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    tensors = {name: it.half() for name, it in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    whole = load_backbone(folder).digest
    (folder / "model.safetensors").unlink()
    shards = {"model-1.safetensors": list(tensors)[::2], "model-2.safetensors": list(tensors)[1::2]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    assert whole == add(folder).digest == load_backbone(folder).digest
    assert whole == load_backbone("base").digest


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_of_the_old_format_become_safetensors(tmp_path: Path, *, is_zip: bool) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    before = load_backbone(folder).digest
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)

    assert add(folder).digest == before


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("a pickle ran",)


@pytest.mark.parametrize("content", [{"x": Hostile()}, {"x": 3}, [torch.zeros(1)], "text"])
def test_a_pickle_of_more_than_tensors_is_refused_and_never_runs(
    tmp_path: Path, content: object, capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")

    with raises("unsupported_import", match="only plain tensors"):
        add(folder)

    assert capsys.readouterr().out == ""
    assert not (store / "base").exists()


def test_vectors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.attention.self.query.weight"
    save_file({**tensors, name: tensors[name] * float("nan")}, folder / "model.safetensors")

    with raises("unsupported_import", match="no finite numbers; its weights are damaged"):
        add(folder)


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("bert", {"layer_norm_eps": 1e-2}),
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"num_attention_heads": 2}),
        ("roberta", {"pad_token_id": 0}),
        ("modernbert", {"local_attention": 4}),
        ("modernbert", {"global_attn_every_n_layers": 3}),
    ],
)
def test_the_comparison_sees_every_setting_that_a_reader_may_miss(
    tmp_path: Path, family: Family, setting: dict[str, Any]
) -> None:
    """Guards the comparison: the same weights with one other setting must not pass."""
    folder = save_tiny_backbone(tmp_path / "base", family=family)
    backbone = load_backbone(folder)
    raw = {**json.loads((folder / "config.json").read_text()), **setting}
    checkpoint = Checkpoint(folder)
    config = config_of(checkpoint, raw)
    tensors = load_file(folder / "model.safetensors")
    model = load_model(checkpoint, encoder_class(config), config, tensors).model
    expected = answers_of(model, backbone)

    with raises("unsupported_import", match="differ from the answers in its own library"):
        check_answers(Checkpoint(folder), vector_branch(backbone), backbone, expected)


def edited(file: str, changes: Mapping[str, Mapping[str, object]]) -> dict[str, tuple[str, Damage]]:
    return {
        name: (file, lambda path, change=change: edit_json(path, change))
        for name, change in changes.items()
    }


def linked_to_itself(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def with_many_names(path: Path) -> None:
    names = {f"{number:x}": entry(0, 0, (0,)) for number in range(50_000)}
    path.write_bytes(document(names, 0))


BOUNDLESS: dict[str, tuple[str, Damage]] = {
    **edited("config.json", HOSTILE_CONFIGS),
    **edited("tokenizer.json", HOSTILE_TOKENIZERS),
    **{
        f"link-{file}": (file, linked_to_itself)
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    },
    "many-names": ("model.safetensors", with_many_names),
}


@pytest.mark.parametrize("name", BOUNDLESS)
def test_a_file_without_bounds_is_refused_before_anything_is_made(
    tmp_path: Path, store: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    file, damage = BOUNDLESS[name]
    damage(folder / file)
    begin = time.process_time(), psutil.Process().memory_info().rss

    with pytest.raises(NunatakError) as refused:
        add(folder)

    assert refused.value.code in {"unsupported_import", "invalid_folder", "corrupt_file"}
    assert time.process_time() - begin[0] < 30
    assert psutil.Process().memory_info().rss - begin[1] < 2**30
    assert not (store / "base").exists()
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, file: str) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    (folder / file).rename(tmp_path / file)
    (folder / file).symlink_to(tmp_path / file)

    with raises("escaping_file", match=file):
        add(folder)


@pytest.mark.parametrize("name", ["", "minilm", "../up", "a/b", ".hidden", "a+int8", "x" * 97])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = save_tiny_backbone(tmp_path / "base")

    reason = "is built in" if name == "minilm" else "begins with a letter or a digit"
    with raises("invalid_option", match=f"{reason}.*--name"):
        add(folder, name or "?")


def test_a_name_is_given_once(tmp_path: Path) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    add(folder)

    with raises("folder_in_use"):
        add(folder)


def test_the_list_shows_what_was_added_and_verify_sees_damage(tmp_path: Path, store: Path) -> None:
    assert list_backbones() == []
    one = add(save_tiny_backbone(tmp_path / "one"))
    two = add(save_tiny_backbone(tmp_path / "two", seed=2))

    assert list_backbones() == [one, two]
    assert read_backbone("one") == one
    assert (verify_backbone("one"), verify_backbone("two")) == (None, None)

    tensors = load_file(store / "two" / "model.safetensors")
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] + 1}, store / "two" / "model.safetensors")
    assert "the digest" in cast("str", verify_backbone("two"))
    (store / "one" / "config.json").write_text("{")
    assert "config.json" in cast("str", verify_backbone("one"))
    with raises("backbone_not_found", match="backbone list"):
        verify_backbone("three")


def test_a_repository_of_the_hub_is_added_with_its_commit(tmp_path: Path) -> None:
    folder = save_tiny_backbone(tmp_path / "base")
    tensors = load_file(folder / "model.safetensors")
    with running_hub() as hub:
        files = {it.name: it.read_bytes() for it in folder.iterdir()}
        del files["model.safetensors"]
        torch.save(tensors, tmp_path / "weights")
        files["pytorch_model.bin"] = (tmp_path / "weights").read_bytes()
        hub.repositories["owner/name"] = files

        added = add_backbone("owner/name", name=None)

    assert added.name == "name"
    assert added.source.startswith("owner/name@")
    assert load_backbone("name").digest == load_backbone(folder).digest


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a hub that may not be asked, with one repository."""
    made, cache, commit = tmp_path / "base", tmp_path / "cache", "0123456789abcdef" * 2 + "01234567"
    folder = save_tiny_backbone(made)
    place = cache / "models--owner--name"
    snapshot, blobs, refs = place / "snapshots" / commit, place / "blobs", place / "refs"
    for each in (snapshot, blobs, refs):
        each.mkdir(parents=True)
    (refs / "main").write_text(commit)
    for file in folder.iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    (snapshot / "notes.txt").write_text("not read")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", value=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return folder


def test_without_a_network_the_cache_of_the_hub_is_read(offline: Path) -> None:
    added = add_backbone("owner/name", name=None)

    assert added.source == "owner/name@0123456789abcdef0123456789abcdef01234567"
    assert load_backbone("name").digest == load_backbone(offline).digest
    with fetched("owner/name", revision="main", files=("*.json",)) as found:
        assert {it.suffix for it in found.folder.iterdir()} == {".json"}
        assert not any(it.is_symlink() for it in found.folder.iterdir())


@pytest.mark.parametrize(("name", "revision"), [("owner/other", None), ("owner/name", "v2")])
@pytest.mark.usefixtures("offline")
def test_what_is_not_in_the_cache_without_a_network_is_one_clear_line(
    name: str, revision: str | None
) -> None:
    with raises("hub_unavailable", match=r"HF_HUB_OFFLINE is set, and the cache") as refused:
        add_backbone(name, name=None, revision=revision)

    assert "\n" not in str(refused.value)
