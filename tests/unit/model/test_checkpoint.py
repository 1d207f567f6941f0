import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from doubles.backbones import save_tiny_backbone
from doubles.refusals import raises
from nunatak_model import CorruptBackboneError, UnsupportedBackboneError, load_backbone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_backbone(tmp_path / "tiny", num_layers=2)


def rewrite_weights(folder: Path, rename: dict[str, str] | None = None, prefix: str = "") -> None:
    tensors = load((folder / "model.safetensors").read_bytes())
    renamed = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        new = prefix + name
        for old_part, new_part in (rename or {}).items():
            new = new.replace(old_part, new_part)
        renamed[new] = tensor
    (folder / "model.safetensors").write_bytes(save(renamed))


def test_the_digest_is_of_content_not_of_names_heads_or_dtype(folder: Path) -> None:
    plain = load_backbone(folder).digest
    rewrite_weights(folder, prefix="bert.")
    prefixed = load_backbone(folder, dtype=torch.bfloat16).digest
    rewrite_weights(
        folder, {"LayerNorm.weight": "LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    )

    assert plain == prefixed == load_backbone(folder).digest


def test_the_digest_sees_weights_tokenizer_and_configuration(folder: Path, tmp_path: Path) -> None:
    other_weights = save_tiny_backbone(tmp_path / "other", num_layers=2, seed=1)
    digests = {load_backbone(folder).digest, load_backbone(other_weights).digest}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 8}))
    digests.add(load_backbone(folder).digest)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(tokenizer + "\n")
    digests.add(load_backbone(folder).digest)

    assert len(digests) == 4


def test_a_source_that_is_nowhere_is_not_found(tmp_path: Path) -> None:
    with raises("backbone_not_found", match="no such folder"):
        load_backbone(str(tmp_path / "nowhere" / "at" / "all"))


def configured(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def without(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def without_a_tensor(folder: Path) -> None:
    rewrite_weights(folder, {"encoder.layer.1.output.dense.bias": "something.else"})


def without_a_name_in_the_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": [3]}}')


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (without("config.json"), UnsupportedBackboneError, r"config\.json"),
        (without("tokenizer.json"), UnsupportedBackboneError, r"tokenizer\.json"),
        (without("model.safetensors"), UnsupportedBackboneError, r"model\.safetensors"),
        (configured(model_type="gpt2"), UnsupportedBackboneError, "gpt2"),
        (configured(intermediate_size=50), CorruptBackboneError, "must have shape"),
        (cut_short, CorruptBackboneError, "the backbone [^ ]+ is damaged: model.safetensors"),
        (without_a_tensor, CorruptBackboneError, r"layer\.1\.output\.dense\.bias"),
        (without_a_name_in_the_index, UnsupportedBackboneError, r"has no \[3\]"),
    ],
    ids=[
        *("no-config", "no-tokenizer", "no-weights", "other-type"),
        *("misshapen", "cut-short", "a-tensor-less", "nameless"),
    ],
)
def test_a_folder_that_is_no_whole_backbone_is_refused_by_its_fault(
    folder: Path, change: Callable[[Path], None], error: type[Exception], words: str
) -> None:
    change(folder)

    with pytest.raises(error, match=words):
        load_backbone(folder)


def test_name_of_the_folder_at_hand_is_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)

    assert load_backbone(".").name == "tiny"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("config.json", '{"model_type": "be', id="config-cut-short"),
        pytest.param("config.json", '["bert"]', id="config-is-a-list"),
        pytest.param("config.json", '{"model_type": "bert"}', id="config-without-sizes"),
        pytest.param("config.json", b"\xff\xfe{", id="config-is-no-text"),
        pytest.param("config.json", "[" * 100_000, id="config-is-too-deep"),
        pytest.param("tokenizer.json", '{"model": ', id="tokenizer-cut-short"),
        pytest.param("tokenizer.json", "{}", id="tokenizer-is-empty"),
        pytest.param("tokenizer.json", b"\xff\xfe{", id="tokenizer-is-no-text"),
        pytest.param("tokenizer.json", '["model"]', id="tokenizer-is-a-list"),
        pytest.param("tokenizer.json", '{"model": {"type": "Other"}}', id="tokenizer-is-unknown"),
        pytest.param("model.safetensors.index.json", '{"weight_', id="index-cut-short"),
        pytest.param("model.safetensors.index.json", "{}", id="index-without-map"),
        pytest.param("1_Pooling/config.json", "{", id="pooling-cut-short"),
    ],
)
def test_broken_json_is_refused_by_the_name_of_its_file(
    folder: Path, file: str, text: str | bytes
) -> None:
    path = folder / file
    if "index" in file:
        (folder / "model.safetensors").unlink()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)

    with pytest.raises(CorruptBackboneError, match=path.name):
        load_backbone(folder)
