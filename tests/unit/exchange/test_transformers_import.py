"""Fine-tuned checkpoints, written by transformers, as branches."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig

from doubles.adapter_folders import edit_json
from doubles.backbones import save_tiny_backbone
from doubles.checkpoints import save_checkpoint
from doubles.hostile_files import HOSTILE_TOKENIZERS
from doubles.published import TwinFactory
from doubles.refusals import raises
from nunatak_contract.enums import HeadKind, LogitUse, ProblemType
from nunatak_contract.methods import Full, HeadOnly, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import load_backbone


def test_only_what_differs_is_kept_and_the_source_says_so(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=2))

    found = import_transformers(Checkpoint(tmp_path), bert.backbone)

    names = [name for name in found.parameters if not name.startswith("head.")]
    assert {tuple(name.split(".")[:2]) for name in names} == {("layers", "2"), ("layers", "3")}
    told = "layers 2-3 differ: top-2 of 4"
    assert found.source.startswith(f"BertForSequenceClassification, {told}; ")
    assert found.source.endswith("% of the parameters stay shared")


def test_layers_above_a_changed_one_belong_to_the_branch_even_if_equal(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path)
    change(tmp_path, "bert.encoder.layer.1.output.LayerNorm.bias", lambda tensor: tensor + 1e-6)

    imported = import_transformers(Checkpoint(tmp_path), bert.backbone)

    assert imported.spec.method == TopK(num_layers=3)
    assert "layer 1 differs: top-3 of 4" in imported.source


def test_a_label_map_that_names_no_text_for_a_logit_is_refused_unless_the_caller_names_labels(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path, num_labels=3)
    named = ImportChoices(labels=("a", "b", "c"))
    assert import_transformers(Checkpoint(tmp_path), bert.backbone, named).labels == ("a", "b", "c")
    for stored in (
        {"0": 1, "1": 2, "2": 3},
        {"0": "a", "1": None, "2": "c"},
        {"0": "a", "1": True, "2": "c"},
        {"0": "a", "1": ["b"], "2": "c"},
        {"0": "a", "2": "c", "3": "d"},
        {"1": "a", "2": "b", "3": "c"},
        {"a": "0", "b": "1", "c": "2"},
        {"0": "a", "1": "b"},
    ):
        edit(tmp_path / "config.json", id2label=stored)
        with raises("unknown_labels", match="--labels a,b,c"):
            import_transformers(Checkpoint(tmp_path), bert.backbone)

    assert import_transformers(Checkpoint(tmp_path), bert.backbone, named).labels == ("a", "b", "c")


def test_labels_that_transformers_leaves_out_have_its_names(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path, num_labels=2)
    edit(tmp_path / "config.json", id2label=None, label2id=None)

    assert import_transformers(Checkpoint(tmp_path), bert.backbone).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize("other", [{"label 0": 1, "label 1": 0}, {"LABEL_0": 0, "LABEL_1": 1}])
def test_labels_are_those_of_transformers_pipeline_where_the_maps_of_labels_disagree(
    bert: TwinFactory, tmp_path: Path, other: dict[str, int]
) -> None:
    save_checkpoint(bert, tmp_path, num_labels=2)
    edit(tmp_path / "config.json", label2id=other)

    stored = json.loads((tmp_path / "config.json").read_text())
    named = BertConfig(**{it: stored[it] for it in ("id2label", "label2id")}).id2label
    assert named is not None
    labels = tuple(named.values())
    assert import_transformers(Checkpoint(tmp_path), bert.backbone).labels == labels


def test_the_longest_input_matches_the_tokenizer(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path)
    assert import_transformers(Checkpoint(tmp_path), bert.backbone).max_length == 40

    edit(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    assert import_transformers(Checkpoint(tmp_path), bert.backbone).max_length is None

    (tmp_path / "tokenizer_config.json").unlink()
    assert import_transformers(Checkpoint(tmp_path), bert.backbone).max_length is None


def test_shards_and_names_of_old_checkpoints_are_read(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1))
    whole = import_transformers(Checkpoint(tmp_path), bert.backbone)
    stored = load_file(tmp_path / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): it for name, it in stored.items()}
    old["bert.embeddings.position_ids"] = torch.arange(8)
    (tmp_path / "model.safetensors").unlink()
    shards = {"a.safetensors": list(old)[::2], "b.safetensors": list(old)[1::2]}
    for file, names in shards.items():
        save_file({name: old[name] for name in names}, tmp_path / file)
    index = {"weight_map": {name: file for file, names in shards.items() for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    again = import_transformers(Checkpoint(tmp_path), bert.backbone)

    assert again.spec == whole.spec
    assert all(torch.equal(again.parameters[name], it) for name, it in whole.parameters.items())


def test_a_pooler_that_no_head_reads_is_left_out(bert: TwinFactory, tmp_path: Path) -> None:
    save_checkpoint(bert, tmp_path, kind=HeadKind.TOKEN_CLASSIFICATION)
    add(tmp_path, "bert.pooler.dense.weight", torch.zeros(32, 32))

    imported = import_transformers(Checkpoint(tmp_path), bert.backbone)

    assert set(imported.parameters) == {"head.output.weight", "head.output.bias"}


def edit(path: Path, **changes: object) -> None:
    """Change fields of a JSON file; `...` removes one."""
    fields = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({name: it for name, it in fields.items() if it is not ...}))


def change(folder: Path, name: str, made: Callable[[Tensor], Tensor]) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: made(tensors[name])}, folder / "model.safetensors")


def add(folder: Path, name: str, tensor: Tensor) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: tensor}, folder / "model.safetensors")


def remove(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")


def swap_words(path: Path) -> None:
    definition = json.loads(path.read_bytes())
    words = definition["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    path.write_text(json.dumps(definition))


def index_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"classifier.bias": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


Damage = Callable[[Path], object]
REFUSALS: dict[str, tuple[Damage, str, str]] = {
    "no-config": (lambda it: (it / "config.json").unlink(), "invalid_folder", "config.json"),
    "config-is-no-json": (
        lambda it: (it / "config.json").write_text("{"),
        "corrupt_file",
        "config.json does not read",
    ),
    "no-class": (
        lambda it: edit(it / "config.json", architectures=None),
        "unsupported_import",
        "names no class; write there the one class",
    ),
    "two-classes": (
        lambda it: edit(it / "config.json", architectures=["BertModel", "BertForMaskedLM"]),
        "unsupported_import",
        "names BertModel, BertForMaskedLM; write there the one class",
    ),
    "own-class": (
        lambda it: edit(it / "config.json", architectures=["MyBertForSequenceClassification"]),
        "unsupported_import",
        "others compute otherwise",
    ),
    "no-head": (
        lambda it: edit(it / "config.json", architectures=["BertModel"]),
        "unsupported_import",
        "it is a BertModel, which has no head (and SetFit's head is a pickle); train a head on it",
    ),
    "several-numbers": (
        lambda it: edit(it / "config.json", problem_type="regression"),
        "unsupported_import",
        "it is a regression to 3 numbers; a regression task gives one number",
    ),
    "missing-field": (
        lambda it: edit(it / "config.json", hidden_size=...),
        "foreign_backbone",
        "its hidden_width is 768, the backbone's is 32",
    ),
    "unknown-problem": (
        lambda it: edit(it / "config.json", problem_type="poetry"),
        "unsupported_import",
        "problem_type in config.json is 'poetry'; expected one of single_label_classification, ",
    ),
    "no-tokenizer": (
        lambda it: (it / "tokenizer.json").unlink(),
        "unsupported_import",
        "tokenizer.json",
    ),
    "broken-tokenizer": (
        lambda it: (it / "tokenizer.json").write_text("{}"),
        "unsupported_import",
        "transformers cannot read its tokenizer",
    ),
    "another-vocabulary": (
        lambda it: swap_words(it / "tokenizer.json"),
        "foreign_backbone",
        "its tokenizer differs in: vocabulary",
    ),
    "another-normalizer": (
        lambda it: edit(it / "tokenizer.json", normalizer=None),
        "foreign_backbone",
        "normalizer; name the backbone it was trained from, or import and serve it with its own",
    ),
    "no-weights": (
        lambda it: (it / "model.safetensors").unlink(),
        "invalid_folder",
        "no file model.safetensors",
    ),
    "truncated": (
        lambda it: (it / "model.safetensors").write_bytes(
            (it / "model.safetensors").read_bytes()[:-8]
        ),
        "corrupt_file",
        "no safetensors",
    ),
    "missing-tensor": (
        lambda it: remove(it, "classifier.bias"),
        "tensor_mismatch",
        "1 missing (classifier.bias)",
    ),
    "unread-tensor": (
        lambda it: add(it, "cls.predictions.bias", torch.zeros(3)),
        "tensor_mismatch",
        "1 that nothing reads (cls.predictions.bias)",
    ),
    "misshapen-tensor": (
        lambda it: change(it, "classifier.weight", lambda tensor: tensor[:, :-1].contiguous()),
        "tensor_mismatch",
        "expected [3, 32]",
    ),
    "other-numbers": (
        lambda it: change(it, "classifier.weight", lambda tensor: tensor.to(torch.float64)),
        "unsupported_import",
        "torch.float64",
    ),
    "billionth-token": (
        lambda it: edit_json(it / "tokenizer.json", {"model.vocab.a": 10**9}),
        "unsupported_import",
        "at most 16777216 as token ids",
    ),
    "replaced-by-a-megabyte": (
        lambda it: edit_json(it / "tokenizer.json", HOSTILE_TOKENIZERS["replaced-by-a-megabyte"]),
        "unsupported_import",
        "characters that its normalizers make of one",
    ),
    "label-twice": (
        lambda it: edit(it / "config.json", id2label={"0": "a", "1": "b", "2": "a"}),
        "unknown_labels",
        "different texts",
    ),
    "shard-elsewhere": (index_elsewhere, "escaping_file", "a link out of the folder"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_imported_is_refused_by_name(
    bert: TwinFactory, tmp_path: Path, name: str
) -> None:
    damage, code, message = REFUSALS[name]
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1))
    damage(tmp_path)

    with raises(code) as caught:
        import_transformers(Checkpoint(tmp_path), bert.backbone)

    assert message in str(caught.value)


def test_another_backbone_of_the_same_shape_shares_nothing(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path / "tuned", method=TopK(num_layers=1))
    other = load_backbone(save_tiny_backbone(tmp_path / "other", seed=7))

    assert isinstance(import_transformers(Checkpoint(tmp_path / "tuned"), other).spec.method, Full)


@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c", "d"), ("a", "b", "a")])
def test_labels_that_do_not_fit_the_head_are_refused(
    bert: TwinFactory, tmp_path: Path, labels: tuple[str, ...]
) -> None:
    save_checkpoint(bert, tmp_path)

    with raises("unknown_labels"):
        import_transformers(Checkpoint(tmp_path), bert.backbone, ImportChoices(labels=labels))


@pytest.mark.parametrize("kind", [HeadKind.QUESTION_ANSWERING, HeadKind.RANKING])
def test_labels_for_a_head_that_has_none_are_refused(
    bert: TwinFactory, tmp_path: Path, kind: HeadKind
) -> None:
    save_checkpoint(bert, tmp_path, kind=kind)
    use = LogitUse.RANKING if kind is HeadKind.RANKING else None

    with raises("unsupported_import", match="leave out --labels"):
        import_transformers(
            Checkpoint(tmp_path), bert.backbone, ImportChoices(labels=("a",), logit_use=use)
        )


def test_a_problem_that_is_not_known_is_what_the_caller_says(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path)
    edit(tmp_path / "config.json", problem_type="poetry")
    choices = ImportChoices(problem_type=ProblemType.MULTI_LABEL)

    imported = import_transformers(Checkpoint(tmp_path), bert.backbone, choices)

    assert imported.problem_type is ProblemType.MULTI_LABEL


def test_a_file_left_over_from_shards_is_not_read(bert: TwinFactory, tmp_path: Path) -> None:
    """transformers reads the one file first, and leaves the index of an earlier save."""
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1))
    index = {"weight_map": {"bert.pooler.dense.bias": "model-00001-of-00004.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    imported = import_transformers(Checkpoint(tmp_path), bert.backbone)
    own = load_backbone(tmp_path)

    assert imported.spec.method == TopK(num_layers=1)
    assert isinstance(import_transformers(Checkpoint(tmp_path), own).spec.method, HeadOnly)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_that_differ_by_rounding_alone_are_told(
    bert: TwinFactory, tmp_path: Path, dtype: torch.dtype
) -> None:
    save_checkpoint(bert, tmp_path, method=TopK(num_layers=1))
    exact = import_transformers(Checkpoint(tmp_path), bert.backbone)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: it.to(dtype) for name, it in tensors.items()}, tmp_path / "model.safetensors")

    rounded = import_transformers(Checkpoint(tmp_path), bert.backbone)

    name = str(dtype).removeprefix("torch.")
    assert f"the folder stores {name}" in rounded.source
    assert "save the trained model in float32" in rounded.source
    assert "stores" not in exact.source
    assert (exact.spec.method, rounded.spec.method) == (TopK(num_layers=1), Full())


def test_a_checkpoint_that_changed_every_layer_is_not_told_to_be_rounded(
    bert: TwinFactory, tmp_path: Path
) -> None:
    save_checkpoint(bert, tmp_path, method=Full())
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: it.half() for name, it in tensors.items()}, tmp_path / "model.safetensors")

    assert "stores" not in import_transformers(Checkpoint(tmp_path), bert.backbone).source
