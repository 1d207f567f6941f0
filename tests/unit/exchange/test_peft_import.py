"""peft folders: features without an exact equivalent here are refused by name."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from doubles.adapter_folders import edit_json, edit_tensors, peft_folder
from doubles.backbones import WIDTH, tiny_backbone
from doubles.hostile_files import HOSTILE_FILES
from doubles.refusals import raises
from doubles.tasks import LABELS
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import QUERY_AND_VALUE, Lora
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.peft_folders import import_peft
from nunatak_model import Backbone, tensors_from_bytes, tensors_to_bytes

CONFIG, WEIGHTS, MEANING = "adapter_config.json", "adapter_model.safetensors", "config.json"
QUERY = "base_model.model.bert.encoder.layer.{}.attention.self.query.lora_{}.weight"

UNSUPPORTED: dict[str, tuple[dict[str, object], str]] = {
    "boft": ({"peft_type": "BOFT"}, "BOFT"),
    "prefix": ({"peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING"),
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
CORRUPT_CONFIGS = {
    "no-json": b"{nope}",
    "list": b"[]",
    "deep": b'{"peft_type":' * 5000,
    "no-type": b"{}",
    "alpha-nan": b'{"peft_type": "LORA", "lora_alpha": NaN}',
    "pattern": b'{"peft_type": "LORA", "task_type": "SEQ_CLS", "target_modules": "(("}',
}


@pytest.fixture
def folder(tmp_path: Path, backbone: Backbone) -> Path:
    return peft_folder(tmp_path / "adapter", backbone)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_imported_is_refused_by_name(
    name: str, folder: Path, backbone: Backbone
) -> None:
    changes, named = UNSUPPORTED[name]
    edit_json(folder / CONFIG, changes)

    with raises("unsupported_import", match=named):
        import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize("name", WITHOUT_TENSORS)
def test_a_setting_without_its_tensors_is_a_mismatch(
    name: str, folder: Path, backbone: Backbone
) -> None:
    edit_json(folder / CONFIG, WITHOUT_TENSORS[name])

    with raises("tensor_mismatch", match="missing"):
        import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize("off", [None, False, [], {}, 0], ids=str)
def test_an_unknown_setting_that_is_off_is_no_hindrance(
    off: object, folder: Path, backbone: Backbone
) -> None:
    edit_json(folder / CONFIG, {"spectral_gate": off, "megatron_core": "megatron.core"})

    assert import_peft(Checkpoint(folder), backbone).spec.method == Lora(
        rank=2, alpha=4.0, targets=QUERY_AND_VALUE
    )


def test_patterns_may_be_null_as_in_older_folders(folder: Path, backbone: Backbone) -> None:
    edit_json(folder / CONFIG, {"rank_pattern": None, "alpha_pattern": None})

    assert import_peft(Checkpoint(folder), backbone).spec.method == Lora(
        rank=2, alpha=4.0, targets=QUERY_AND_VALUE
    )


def test_a_trained_pooler_is_taken_and_a_frozen_one_is_the_backbones(
    folder: Path, backbone: Backbone
) -> None:
    trained = import_peft(Checkpoint(folder), backbone).parameters["head.dense.weight"]
    edit_json(folder / CONFIG, {"modules_to_save": ["classifier"]})
    names = [f"base_model.model.bert.pooler.dense.{part}" for part in ("weight", "bias")]
    edit_tensors(folder / WEIGHTS, dict.fromkeys(names))

    frozen = import_peft(Checkpoint(folder), backbone).parameters["head.dense.weight"]

    assert backbone.pooler is not None
    assert torch.equal(frozen, backbone.pooler.weight)
    assert not torch.equal(trained, frozen)


def test_a_backbone_without_the_pooler_that_the_head_reads_is_refused(
    folder: Path, backbone: Backbone
) -> None:
    edit_json(folder / CONFIG, {"modules_to_save": ["classifier"]})
    names = [f"base_model.model.bert.pooler.dense.{part}" for part in ("weight", "bias")]
    edit_tensors(folder / WEIGHTS, dict.fromkeys(names))

    with raises("foreign_backbone", match="pooler"):
        import_peft(Checkpoint(folder), replace(backbone, pooler=None))


def test_the_class_of_the_model_decides_the_task_without_a_type(
    folder: Path, backbone: Backbone
) -> None:
    mapping = {"base_model_class": "BertForSequenceClassification"}
    saved = ["classifier", "pooler"]
    edit_json(
        folder / CONFIG, {"task_type": None, "auto_mapping": mapping, "modules_to_save": saved}
    )

    assert import_peft(Checkpoint(folder), backbone).labels == LABELS


@pytest.mark.parametrize("name", CORRUPT_CONFIGS)
def test_a_broken_configuration_is_a_corrupt_file(
    name: str, folder: Path, backbone: Backbone
) -> None:
    (folder / CONFIG).write_bytes(CORRUPT_CONFIGS[name])

    with raises("corrupt_file") as caught:
        import_peft(Checkpoint(folder), backbone)

    assert caught.value.fields["file"] == CONFIG


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_weights_are_a_corrupt_file(name: str, folder: Path, backbone: Backbone) -> None:
    (folder / WEIGHTS).write_bytes(HOSTILE_FILES[name])

    with raises("corrupt_file") as caught:
        import_peft(Checkpoint(folder), backbone)

    assert caught.value.fields["file"] == WEIGHTS


def test_truncated_weights_are_a_corrupt_file(folder: Path, backbone: Backbone) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    for size in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        (folder / WEIGHTS).write_bytes(whole[:size])
        with raises("corrupt_file"):
            import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MEANING])
def test_a_link_out_of_the_folder_is_not_followed(
    name: str, folder: Path, tmp_path: Path, backbone: Backbone
) -> None:
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)

    with raises("escaping_file", match=name):
        import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, MEANING])
def test_a_pipe_is_not_waited_for(name: str, folder: Path, backbone: Backbone) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)

    with raises("corrupt_file", match="regular file"):
        import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(name: str, folder: Path, backbone: Backbone) -> None:
    (folder / name).unlink()

    with raises("invalid_folder", match=name):
        import_peft(Checkpoint(folder), backbone)


def test_a_pickle_is_refused_unread(folder: Path, backbone: Backbone) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")

    with raises("pickled_weights", match=r"adapter_model\.bin"):
        import_peft(Checkpoint(folder), backbone)


def test_a_missing_tensor_is_named(folder: Path, backbone: Backbone) -> None:
    edit_tensors(folder / WEIGHTS, {QUERY.format(2, "B"): None})

    with raises("tensor_mismatch", match=re.escape(f": 1 missing ({QUERY.format(2, 'B')})")):
        import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize("name", ["base_model.model.bert.extra", "classifier.bias"])
def test_a_tensor_that_nothing_reads_is_named(name: str, folder: Path, backbone: Backbone) -> None:
    edit_tensors(folder / WEIGHTS, {name: torch.ones(3)})

    with raises("tensor_mismatch", match=name.removeprefix("base_model.model.")):
        import_peft(Checkpoint(folder), backbone)


def test_a_rank_other_than_configured_is_refused(folder: Path, backbone: Backbone) -> None:
    edit_json(folder / CONFIG, {"rank_pattern": {"query": 3}})

    with raises("tensor_mismatch", match="of another shape"):
        import_peft(Checkpoint(folder), backbone)


def test_a_missing_head_is_a_missing_tensor(folder: Path, backbone: Backbone) -> None:
    edit_tensors(
        folder / WEIGHTS,
        {f"base_model.model.classifier.{part}": None for part in ("weight", "bias")},
    )

    with raises("tensor_mismatch", match=r"classifier\.weight"):
        import_peft(Checkpoint(folder), backbone)


def test_an_adapter_of_another_shape_of_model_asks_for_its_backbone(
    folder: Path, backbone: Backbone
) -> None:
    deeper = {QUERY.format(7, "A"): torch.ones(2, WIDTH)}
    wider = {QUERY.format(0, "A"): torch.ones(2, 64), QUERY.format(0, "B"): torch.ones(64, 2)}
    whole = (folder / WEIGHTS).read_bytes()
    for changes, named in ((deeper, r"layer\.7"), (wider, r"\[2, 64\], expected \[2, 32\]")):
        (folder / WEIGHTS).write_bytes(whole)
        edit_tensors(folder / WEIGHTS, changes)

        with raises("tensor_mismatch", match=f"{named}.*name the backbone it was trained from"):
            import_peft(Checkpoint(folder), backbone)


def test_an_adapter_of_another_family_asks_for_its_backbone(folder: Path) -> None:
    with raises(
        "unsupported_import", match=r"peft cannot adapt.*name the backbone it was trained from"
    ):
        import_peft(Checkpoint(folder), tiny_backbone(family="roberta"))


def test_labels_are_asked_for_where_the_folder_has_none(folder: Path, backbone: Backbone) -> None:
    (folder / MEANING).unlink()

    with raises("unknown_labels"):
        import_peft(Checkpoint(folder), backbone)
    named = ImportChoices(labels=("a", "b", "c"))
    assert import_peft(Checkpoint(folder), backbone, named).labels == named.labels


@pytest.mark.parametrize(
    "labels",
    [{}, {"0": "a", "1": "b"}, {"0": "a", "1": "a", "2": "b"}, {"1": "a", "2": "b", "3": "c"}],
)
def test_labels_that_do_not_fit_the_head_are_refused(
    labels: dict[str, str], folder: Path, backbone: Backbone
) -> None:
    edit_json(folder / MEANING, {"id2label": labels})

    with raises("unknown_labels"):
        import_peft(Checkpoint(folder), backbone)


@pytest.mark.parametrize(
    ("said", "expected"), [(None, None), (40, 40), (9000, None), (10**30, None)], ids=str
)
def test_the_longest_input_is_what_the_tokenizer_says_if_the_backbone_can(
    said: int | None, expected: int | None, folder: Path, backbone: Backbone
) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    edit_json(folder / "tokenizer_config.json", {"model_max_length": said})

    assert import_peft(Checkpoint(folder), backbone).max_length == expected


def test_half_precision_adapters_become_float32(folder: Path, backbone: Backbone) -> None:
    tensors = tensors_from_bytes((folder / WEIGHTS).read_bytes())
    halves = {name: tensor.half() for name, tensor in tensors.items()}
    (folder / WEIGHTS).write_bytes(tensors_to_bytes(halves))

    imported = import_peft(Checkpoint(folder), backbone)

    assert {tensor.dtype for tensor in imported.parameters.values()} == {torch.float32}


def test_layers_below_the_lowest_adapted_stay_in_the_trunk(
    folder: Path, backbone: Backbone
) -> None:
    tensors = tensors_from_bytes((folder / WEIGHTS).read_bytes())
    kept = {name: it for name, it in tensors.items() if "layer.3" in name or "layer" not in name}
    queries = {name: it for name, it in kept.items() if ".value." not in name}
    (folder / WEIGHTS).write_bytes(tensors_to_bytes(queries))
    edit_json(folder / CONFIG, {"target_modules": ["query"], "layers_to_transform": [3]})

    imported = import_peft(Checkpoint(folder), backbone)

    assert imported.spec.method == Lora(
        rank=2, alpha=4.0, targets=(LinearMap.QUERY,), first_layer=3
    )
