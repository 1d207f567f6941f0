"""Adapter folders of peft and AdapterHub: what cannot be imported exactly is refused by name."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubles.adapter_folders import adapterhub_folder, edit_json, edit_tensors, peft_folder
from doubles.backbones import tiny_backbone
from doubles.hostile_files import HOSTILE_FILES
from doubles.refusals import raises
from nunatak_exchange.adapterhub_import import import_adapterhub
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices, ImportedTask
from nunatak_exchange.peft_folders import import_peft
from nunatak_model import Backbone

CONFIG, WEIGHTS, MEANING = "adapter_config.json", "adapter_model.safetensors", "config.json"
HEAD = "head_config.json"
HUB_WEIGHTS, HEAD_WEIGHTS = "adapter.safetensors", "model_head.safetensors"
QUERY_B = "base_model.model.bert.encoder.layer.2.attention.self.query.lora_B.weight"
DEEPER = "bert.encoder.layer.5.output.adapters.tone.adapter_up.bias"

Damage = Callable[[Path], object]
Case = tuple[str, Damage, str, str]
"""Identifier, what is done to the folder, code and words of the refusal."""

OF_PEFT: dict[str, tuple[dict[str, object], str]] = {
    "megatron": ({"megatron_config": {"a": 1}}, "megatron"),
    "replication": ({"layer_replication": [[0, 2]]}, "layer_replication"),
    "activated": ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
    "arrow": ({"arrow_config": {"top_k": 1}}, "arrow_config"),
    "changed-base": ({"init_lora_weights": "pissa"}, "pissa"),
    "start-from-a-file": ({"init_lora_weights": "corda"}, "corda"),
    "unknown-setting": ({"spectral_gate": 0.5}, "spectral_gate"),
    "language-model": ({"task_type": "CAUSAL_LM"}, "CAUSAL_LM"),
    "no-head": ({"task_type": None}, "task_type"),
    "rank-zero": ({"r": 0}, "peft cannot adapt the backbone"),
    "rank-text": ({"r": "8"}, "peft cannot adapt the backbone"),
    "nothing-to-adapt": ({"target_modules": ["nothing"]}, "peft cannot adapt the backbone"),
}
WITHOUT_TENSORS: dict[str, dict[str, object]] = {
    "dora": {"use_dora": True},
    "low-rank-bias": {"lora_bias": True},
    "trained-tokens": {"trainable_token_indices": [1]},
    "trained-biases": {"bias": "lora_only"},
    "stored-norms": {"modules_to_save": ["LayerNorm"]},
    "embeddings": {"target_modules": ["word_embeddings"]},
}
"""Settings that need tensors which the folder does not have."""
CORRUPT_CONFIGS = (
    b"{nope}",
    b"[]",
    b'{"peft_type":' * 5000,
    b"{}",
    b'{"peft_type": "LORA", "lora_alpha": NaN}',
    b'{"peft_type": "LORA", "task_type": "SEQ_CLS", "target_modules": "(("}',
)
HUB_CORRUPT_CONFIGS = (b"", b"{nope}", b"[]", b"{}", b'{"config":' * 5000)
OF_ADAPTERHUB: dict[str, tuple[str, dict[str, object], str]] = {
    "lora": (CONFIG, {"config.architecture": "lora"}, "lora"),
    "union": (CONFIG, {"config.architecture": "union"}, "union"),
    "parallel": (CONFIG, {"config.is_parallel": True}, "is_parallel"),
    "gated": (CONFIG, {"config.use_gating": True}, "use_gating"),
    "compacter": (CONFIG, {"config.phm_layer": True}, "Compacter"),
    "invertible": (CONFIG, {"config.inv_adapter": "nice"}, "invertible"),
    "norm-before": (CONFIG, {"config.ln_before": True}, "ln_before"),
    "norm-after": (CONFIG, {"config.ln_after": True}, "ln_after"),
    "unknown-setting": (CONFIG, {"config.spectral": 1}, "spectral"),
    "non-linearity": (CONFIG, {"config.non_linearity": "mish"}, "mish"),
    "scaling": (CONFIG, {"config.scaling": "random"}, "random"),
    "no-norm": (CONFIG, {"config.original_ln_after": False}, "original_ln_after"),
    "residual": (
        CONFIG,
        {"config.original_ln_before": True, "config.residual_before_ln": "post_add"},
        "post_add",
    ),
    "head-type": (HEAD, {"config.head_type": "masked_lm"}, "masked_lm"),
    "deep-head": (HEAD, {"config.layers": 3}, "3 layers"),
    "deep-head-on-pooler": (HEAD, {"config.use_pooler": True}, "pooler"),
    "head-activation": (HEAD, {"config.activation_function": "relu"}, "relu"),
    "no-offset": (HEAD, {"config.bias": False}, "offset"),
    "head-class": (HEAD, {"config": None, "model_class": "BertForMaskedLM"}, "BertForMaskedLM"),
}
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"0": "a", "1": "b"},
    {"0": "a", "1": "a", "2": "b"},
    {"1": "a", "2": "b", "3": "c"},
)


def edited(file: str, changes: Mapping[str, object]) -> Damage:
    return lambda folder: edit_json(folder / file, changes)


def written(file: str, data: bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(data)


def stored(file: str, changes: Mapping[str, Tensor | None]) -> Damage:
    return lambda folder: edit_tensors(folder / file, changes)


def renamed(file: str, name: str) -> Damage:
    return lambda folder: (folder / file).rename(folder / name)


def removed(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()


def linked(file: str) -> Damage:
    """A link to the same bytes outside of the folder stands in the place of the file."""

    def damage(folder: Path) -> None:
        (folder / file).rename(folder.parent / file)
        (folder / file).symlink_to(folder.parent / file)

    return damage


def piped(file: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return damage


def file_cases(
    configs: Mapping[str, Iterable[bytes]], weights: Mapping[str, str]
) -> Iterator[Case]:
    """What no file of any folder may be; the weights also have a name as a pickle."""
    for file, contents in configs.items():
        for number, data in enumerate(contents):
            yield f"corrupt-{number}-{file}", written(file, data), "corrupt_file", file
    other = tiny_backbone().tokenizer.definition.replace('"a":', '"?":').replace('"b":', '"a":')
    words = "tokenizer differs in: .*vocabulary"
    yield "other-tokenizer", written("tokenizer.json", other.encode()), "foreign_backbone", words
    for file, pickle in weights.items():
        yield f"pickle-{file}", renamed(file, pickle), "pickled_weights", re.escape(pickle)
        # The reader of weights has all hostile files in tests/unit/registry/blobs.
        for name in ("empty", "pickle", "overlap"):
            yield f"{name}-{file}", written(file, HOSTILE_FILES[name]), "corrupt_file", file
    for file in (*configs, *weights):
        yield f"link-{file}", linked(file), "escaping_file", file
        yield f"pipe-{file}", piped(file), "corrupt_file", "regular file"
        yield f"missing-{file}", removed(file), "invalid_folder", file


def peft_cases() -> Iterator[Case]:
    yield from file_cases({CONFIG: CORRUPT_CONFIGS}, {WEIGHTS: "adapter_model.bin"})
    for name, (changes, words) in OF_PEFT.items():
        yield name, edited(CONFIG, changes), "unsupported_import", words
    for name, changes in WITHOUT_TENSORS.items():
        yield name, edited(CONFIG, changes), "tensor_mismatch", "missing"
    for number, labels in enumerate(LABELS):
        yield f"labels-{number}", edited(MEANING, {"id2label": labels}), "unknown_labels", ""
    yield "no-labels", removed(MEANING), "unknown_labels", ""
    yield "link-meaning", linked(MEANING), "escaping_file", MEANING
    missing = re.escape(f": 1 missing ({QUERY_B})")
    yield "missing-tensor", stored(WEIGHTS, {QUERY_B: None}), "tensor_mismatch", missing
    for value in (float("nan"), float("inf")):
        changes = {QUERY_B.replace("lora_B", "lora_A"): torch.full((2, 32), value)}
        yield f"values-{value}", stored(WEIGHTS, changes), "non_finite_parameter", "query"
    for name in ("bert.extra", "classifier.bias"):
        prefix = "base_model.model." * (name == "bert.extra")
        more = stored(WEIGHTS, {prefix + name: torch.ones(3)})
        yield f"unread-{name}", more, "tensor_mismatch", name
    rank = {"rank_pattern": {"query": 3}}
    yield "other-rank", edited(CONFIG, rank), "tensor_mismatch", "of another shape"


def adapterhub_cases() -> Iterator[Case]:
    weights = {HUB_WEIGHTS: "pytorch_adapter.bin", HEAD_WEIGHTS: "pytorch_model_head.bin"}
    yield from file_cases(dict.fromkeys((CONFIG, HEAD), HUB_CORRUPT_CONFIGS), weights)
    for name, (file, changes, words) in OF_ADAPTERHUB.items():
        yield name, edited(file, changes), "unsupported_import", words
    poetry = written("config.json", b'{"problem_type": "poetry"}')
    yield "unknown-problem", poetry, "unsupported_import", "'poetry'"
    other = edited(CONFIG, {"config.reduction_factor": 8})
    yield "other-size", other, "tensor_mismatch", "of another shape"
    left_open = edited(CONFIG, {"config.reduction_factor": {"0": 16}})
    yield "open-size", left_open, "invalid_folder", "neither layer 1 nor a default"
    deeper = stored(HUB_WEIGHTS, {DEEPER: torch.ones(32)})
    yield "deeper-model", deeper, "tensor_mismatch", r"layer\.5"
    yield "other-type", edited(CONFIG, {"model_type": "roberta"}), "foreign_backbone", ""
    yield "other-width", edited(CONFIG, {"hidden_size": 64}), "foreign_backbone", ""
    how = renamed(HUB_WEIGHTS, "pytorch_adapter.bin")
    yield "pickle-says-how", how, "pickled_weights", "use_safetensors=True"
    yield "no-labels", edited(HEAD, {"config.label2id": None}), "unknown_labels", ""


CASES = {
    f"{writer}-{name}": (writer, damage, code, words)
    for writer, cases in (("peft", peft_cases), ("adapterhub", adapterhub_cases))
    for name, damage, code, words in cases()
}


@pytest.fixture(scope="module")
def backbones() -> dict[str, Backbone]:
    return {"peft": tiny_backbone(), "adapterhub": tiny_backbone(num_layers=2)}


def imported(writer: str, folder: Path, backbone: Backbone, *labels: str) -> ImportedTask:
    importing = import_peft if writer == "peft" else import_adapterhub
    return importing(Checkpoint(folder), backbone, ImportChoices(labels=labels or None))


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_imported_exactly_is_refused_by_name(
    name: str, tmp_path: Path, backbones: dict[str, Backbone]
) -> None:
    writer, damage, code, words = CASES[name]
    backbone, folder = backbones[writer], tmp_path / "adapter"
    if writer == "peft":
        peft_folder(folder, backbone)
    else:
        adapterhub_folder(folder, "bert-houlsby")
    damage(folder)

    with raises(code, match=words or None):
        imported(writer, folder, backbone)

    if name.endswith("-no-labels"):
        assert imported(writer, folder, backbone, "a", "b", "c").labels == ("a", "b", "c")
