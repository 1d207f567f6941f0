import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from doubles.adapter_folders import edit_json, edit_tensors, loaded_task, peft_folder
from doubles.backbones import WIDTH, tiny_backbone
from doubles.refusals import raises
from doubles.tasks import LABELS
from nunatak_contract.enums import HeadKind, LinearMap, Pooling
from nunatak_contract.methods import QUERY_AND_VALUE, Bottleneck, Full, HeadOnly, Lora, Method, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.peft_config import check_patterns
from nunatak_exchange.peft_folders import export_peft, import_peft
from nunatak_exchange.transformers_export import export_sentence_transformers, export_transformers
from nunatak_model import Backbone, tensors_from_bytes, tensors_to_bytes
from nunatak_versions.versions import LoadedTask

CONFIG, WEIGHTS, MEANING = "adapter_config.json", "adapter_model.safetensors", "config.json"
QUERY = "base_model.model.bert.encoder.layer.{}.attention.self.query.lora_{}.weight"
FORMATS = {
    "transformers": export_transformers,
    "sentence-transformers": export_sentence_transformers,
}
POOLINGS = (Pooling.FIRST, Pooling.MEAN)
LORA = Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE)
NAMES = [
    "bert.encoder.layer.0.attention.self.query",
    "bert.encoder.layer.11.output.dense",
    "bert.pooler.dense",
]
ENDLESS = "(.|.)*(.|.)*x"
FIELDS: dict[str, Any] = {
    "target_modules": ENDLESS,
    "exclude_modules": ENDLESS,
    "feedforward_modules": ENDLESS,
    "modules_to_save": [ENDLESS],
    "layers_pattern": [ENDLESS],
    "rank_pattern": {ENDLESS: 2},
    "alpha_pattern": {ENDLESS: 2},
    "target_parameters": [ENDLESS],
}


@pytest.fixture
def folder(tmp_path: Path, backbone: Backbone) -> Path:
    return peft_folder(tmp_path / "adapter", backbone)


def test_an_unknown_setting_that_is_off_is_no_hindrance(folder: Path, backbone: Backbone) -> None:
    off = {f"spectral_{number}": it for number, it in enumerate((None, False, [], {}, 0))}
    edit_json(folder / CONFIG, {**off, "megatron_core": "megatron.core"})

    assert import_peft(Checkpoint(folder), backbone).spec.method == Lora(
        rank=2, alpha=4.0, targets=QUERY_AND_VALUE
    )


def test_a_trained_pooler_is_taken_and_a_frozen_one_is_the_backbones_if_it_has_one(
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
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with raises(
        "unsupported_import", match=r"peft cannot adapt.*name the backbone it was trained from"
    ):
        import_peft(Checkpoint(folder), tiny_backbone(family="roberta"))


@pytest.mark.parametrize(("said", "expected"), [(None, None), (40, 40), (10**30, None)], ids=str)
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


@pytest.mark.parametrize(
    ("method", "pooling"),
    [
        *product((TopK(num_layers=1), HeadOnly(), Bottleneck(size=4), Full()), POOLINGS),
        (LORA, Pooling.MEAN),
    ],
    ids=lambda it: it if isinstance(it, Pooling) else it.kind,
)
def test_what_peft_cannot_hold_is_refused_with_a_format_that_holds_it(
    method: Method, pooling: Pooling, tmp_path: Path
) -> None:
    backbone, out = tiny_backbone(pooling=pooling), tmp_path / "out"
    task = loaded_task(backbone, method)

    with raises("unsupported_export", match="tone/1") as caught:
        export_peft(task, out, backbone)
    assert not out.exists()

    (advised,) = re.findall(r"--format ([\w-]+)", str(caught.value))
    if isinstance(method, Bottleneck):
        assert advised == "hub"
    else:
        FORMATS[advised](task, out, backbone)


@pytest.mark.parametrize("export", [export_peft, *FORMATS.values()])
def test_a_folder_with_something_in_it_is_left_alone(
    export: Callable[[LoadedTask, Path, Backbone], None], backbone: Backbone, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("mine")

    with raises("folder_in_use"):
        export(loaded_task(backbone, LORA), tmp_path, backbone)

    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("kind", HeadKind)
def test_what_was_written_reads_back_bit_by_bit(kind: HeadKind, tmp_path: Path) -> None:
    backbone = tiny_backbone(family="roberta")
    task = loaded_task(
        backbone, Lora(rank=3, alpha=6.0, first_layer=2, targets=QUERY_AND_VALUE), kind=kind
    )
    export_peft(task, tmp_path / "out", backbone)

    imported = import_peft(Checkpoint(tmp_path / "out"), backbone)

    head = task.manifest.head
    assert imported.spec == task.branch.spec
    meaning = json.loads((tmp_path / "out" / MEANING).read_text())
    assert (imported.labels, meaning.get("problem_type")) == (head.labels, head.problem_type)
    assert imported.max_length == task.manifest.max_length < backbone.config.max_tokens
    assert imported.parameters.keys() == task.branch.parameters.keys()
    for name, tensor in imported.parameters.items():
        assert torch.equal(tensor, task.branch.parameters[name])


@pytest.mark.parametrize("pattern", [r".*\.(query|dense)", "bert.pooler.dense", "query", ""])
def test_a_pattern_that_matches_at_once_is_let_through(pattern: str) -> None:
    check_patterns(Checkpoint(Path("adapter")), {"target_modules": pattern}, NAMES)


@pytest.mark.parametrize("pattern", ["((", "*", "(?P<a>", "a{2,1}", "\\", "[", "(" * 2000])
def test_what_is_no_pattern_is_a_corrupt_file(pattern: str) -> None:
    with raises("corrupt_file", match="no regular expression"):
        check_patterns(Checkpoint(Path("adapter")), {"target_modules": pattern}, NAMES)


@pytest.mark.parametrize("field", FIELDS)
def test_a_pattern_that_would_take_years_is_given_up_wherever_it_stands(field: str) -> None:
    started = time.monotonic()

    with raises("corrupt_file", match="to match"):
        check_patterns(Checkpoint(Path("adapter")), {field: FIELDS[field]}, NAMES, time_limit=0.3)

    assert time.monotonic() - started < 5


def test_texts_that_peft_does_not_match_are_no_patterns() -> None:
    check_patterns(
        Checkpoint(Path("adapter")), {"base_model_name_or_path": "C:\\models\\(base"}, NAMES
    )
