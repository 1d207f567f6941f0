"""Every method of peft that is imported answers as in peft itself; all others are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from doubles.adapter_folders import edit_json
from doubles.backbones import Family, save_tiny_backbone
from doubles.checkpoints import branch_of, published_logits
from doubles.peft_folders import ENCODINGS, PeftBase, difference, id2label, save
from doubles.refusals import raises
from nunatak_contract.methods import Full, Ia3, Lora, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportedTask
from nunatak_exchange.peft_config import MERGED, NATIVE, PROMPTS
from nunatak_exchange.peft_folders import import_peft
from nunatak_model import Backbone

pytestmark = [
    pytest.mark.filterwarnings("ignore:Unsupported layer type"),
    pytest.mark.filterwarnings("ignore:.*have invalid shape"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`"),
]
TOLERANCE = 1e-4
DENSE = ["query", "value", "intermediate.dense"]
UPPER = r".*layer\.1\.attention\.self\.(query|value)"
Make = Callable[[], Any]

METHODS: dict[str, Make] = {
    "ADALORA": lambda: peft.AdaLoraConfig(target_modules=DENSE, init_r=4, target_r=2, total_step=9),
    "FOURIERFT": lambda: peft.FourierFTConfig(target_modules=DENSE, n_frequency=20),
    "HRA": lambda: peft.HRAConfig(target_modules=DENSE, r=4),
    "LN_TUNING": lambda: peft.LNTuningConfig(target_modules=["LayerNorm"]),
    "LOHA": lambda: peft.LoHaConfig(target_modules=DENSE, r=4),
    "LOKR": lambda: peft.LoKrConfig(target_modules=DENSE, r=4),
    "OFT": lambda: peft.OFTConfig(target_modules=DENSE, oft_block_size=4),
    "VERA": lambda: peft.VeraConfig(target_modules=["query", "value"], r=8),
}
"""A configuration of each method that peft merges."""
VARIANTS: dict[str, Make] = {
    "dora": lambda: peft.LoraConfig(target_modules=DENSE, r=4, use_dora=True),
    "dora-rslora": lambda: peft.LoraConfig(
        target_modules=DENSE, r=4, use_dora=True, use_rslora=True
    ),
    "bias-all": lambda: peft.LoraConfig(target_modules=DENSE, r=4, bias="all"),
    "bias-lora-only": lambda: peft.LoraConfig(target_modules=DENSE, r=4, bias="lora_only"),
    "bias-of-factors": lambda: peft.LoraConfig(target_modules=DENSE, r=4, lora_bias=True),
    "norms": lambda: peft.LoraConfig(target_modules=DENSE, r=4, modules_to_save=["LayerNorm"]),
    "tokens": lambda: peft.LoraConfig(
        target_modules=DENSE, r=4, trainable_token_indices=[20, 21, 30]
    ),
    "upper-dora": lambda: peft.LoraConfig(target_modules=UPPER, r=4, use_dora=True),
    "both-sides": lambda: peft.IA3Config(
        target_modules=["intermediate.dense"],
        feedforward_modules=r".*layer\.0\.intermediate\.dense",
    ),
    "input-of-key": lambda: peft.IA3Config(target_modules=["key"], feedforward_modules=["key"]),
}
"""LoRA and IA3 with more than their plain form, which peft merges as well."""


@pytest.fixture(scope="module", params=["bert", "roberta"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PeftBase:
    family: Family = request.param
    return PeftBase(tmp_path_factory.mktemp(family), family, num_layers=2)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> PeftBase:
    return PeftBase(tmp_path_factory.mktemp("bert"), "bert", num_layers=2)


def trained(base: PeftBase, folder: Path, config: Any) -> torch.nn.Module:  # noqa: ANN401 - one of peft's
    """Save an adapter with random weights, and load it again as peft's users do."""
    config.task_type = "SEQ_CLS"
    save(base.train(config, num_labels=3, seed=1), folder, meaning=id2label(3))
    return base.load(folder, "SEQ_CLS", 3)


def same_as(theirs: torch.nn.Module, folder: Path, backbone: Backbone) -> ImportedTask:
    """Import a folder, whose answers must be those of peft's model."""
    imported = import_peft(Checkpoint(folder), backbone)
    largest = max(float(published_logits(theirs, it).abs().max()) for it in ENCODINGS)
    found = difference(branch_of(imported, backbone), backbone, theirs)
    assert found <= TOLERANCE * largest
    return imported


def test_each_merged_method_has_a_case() -> None:
    assert METHODS.keys() == MERGED.keys()


@pytest.mark.each
@pytest.mark.parametrize("name", METHODS)
def test_a_merged_method_answers_as_in_peft(base: PeftBase, tmp_path: Path, name: str) -> None:
    theirs = trained(base, tmp_path, METHODS[name]())

    imported = same_as(theirs, tmp_path, base.backbone)

    assert isinstance(imported.spec.method, TopK | Full)
    assert f"peft {MERGED[name]} folder, merged: " in imported.source


@pytest.mark.each
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_of_a_native_method_answers_as_in_peft(
    base: PeftBase, tmp_path: Path, name: str
) -> None:
    theirs = trained(base, tmp_path, VARIANTS[name]())

    assert isinstance(same_as(theirs, tmp_path, base.backbone).spec.method, TopK | Full)


def test_layers_below_the_lowest_changed_one_stay_shared_and_the_cost_is_shown(
    bert: PeftBase, tmp_path: Path
) -> None:
    trained(bert, tmp_path, VARIANTS["upper-dora"]())

    imported = import_peft(Checkpoint(tmp_path), bert.backbone)

    assert imported.spec.method == TopK(num_layers=1)
    assert "peft LoRA folder, merged: 1 of 2 layers its own, 0 MB, " in imported.source


def test_plain_adapters_stay_adapters(bert: PeftBase, tmp_path: Path) -> None:
    trained(bert, tmp_path / "lora", peft.LoraConfig(target_modules=DENSE, use_rslora=True))
    trained(bert, tmp_path / "ia3", peft.IA3Config(target_modules=["key"], feedforward_modules=[]))

    assert isinstance(import_peft(Checkpoint(tmp_path / "lora"), bert.backbone).spec.method, Lora)
    assert isinstance(import_peft(Checkpoint(tmp_path / "ia3"), bert.backbone).spec.method, Ia3)


def test_an_adapter_of_the_embeddings_owns_them(bert: PeftBase, tmp_path: Path) -> None:
    config = peft.LoraConfig(target_modules=["word_embeddings", "query"], r=2)
    theirs = trained(bert, tmp_path, config)

    imported = same_as(theirs, tmp_path, bert.backbone)

    assert imported.spec.method == Full()
    assert "merged: 2 of 2 layers and the embeddings its own" in imported.source


@pytest.mark.parametrize("kind", sorted({it.value for it in peft.PeftType} - {*NATIVE, *MERGED}))
def test_every_other_method_of_peft_is_refused_by_name_and_prompts_with_what_to_do(
    bert: PeftBase, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "adapter_config.json").write_text(
        f'{{"peft_type": "{kind}", "task_type": "SEQ_CLS"}}'
    )
    more = ", which puts .* train the task again with LoRA" if kind in PROMPTS else ""

    with raises("unsupported_import", match=f"{kind}{more}"):
        import_peft(Checkpoint(tmp_path), bert.backbone)


SPLIT: dict[str, tuple[Family, Make]] = {
    "one-half": ("llama", lambda: peft.LoraConfig(target_modules=["gate_proj"], r=4)),
    "unlike-halves": (
        "gte",
        lambda: peft.LoraConfig(
            target_modules=["gate_proj", "up_proj", "v_proj"],
            rank_pattern={"gate_proj": 2},
            alpha_pattern={"up_proj": 5},
        ),
    ),
    "scaled-half": (
        "nomic_bert",
        lambda: peft.IA3Config(target_modules=["up_proj", "k_proj"], feedforward_modules=[]),
    ),
}
"""Plain adapters of modules that are a part of a map here."""
MIXED: dict[str, tuple[Family, Make]] = {
    "dora": ("qwen3", lambda: peft.LoraConfig(target_modules=["q_proj", "up_proj"], use_dora=True)),
    "loha": ("gte", lambda: peft.LoHaConfig(target_modules=["k_proj", "down_proj"], r=4)),
    "norms": ("nomic_bert", lambda: peft.LNTuningConfig(target_modules=["post_mlp_layernorm"])),
    "one-input": (
        "llama",
        lambda: peft.IA3Config(
            target_modules=["gate_proj", "up_proj"], feedforward_modules=["gate_proj"]
        ),
    ),
    "half-an-input": (
        "llama",
        lambda: peft.IA3Config(target_modules=["up_proj"], feedforward_modules=["up_proj"]),
    ),
}
"""Adapters of these modules that peft merges."""


@pytest.mark.parametrize("name", [*SPLIT, *MIXED])
def test_adapters_of_split_maps_answer_as_in_peft(tmp_path: Path, name: str) -> None:
    family, make = {**SPLIT, **MIXED}[name]
    base = PeftBase(tmp_path / "base", family, num_layers=2)
    theirs = trained(base, tmp_path / "it", make())

    method = same_as(theirs, tmp_path / "it", base.backbone).spec.method

    assert isinstance(method, Lora | Ia3 if name in SPLIT else TopK)


@pytest.mark.parametrize(
    ("family", "pooling", "targets"),
    [
        ("modernbert", "cls", ["Wqkv"]),
        ("modernbert", "mean", ["Wqkv", "Wo", "Wi"]),
        ("eurobert", "bos", ["q_proj"]),
        ("eurobert", "late", ["q_proj", "gate_proj"]),
    ],
)
def test_the_pooling_of_the_base_decides_the_answers(
    tmp_path: Path, family: Family, pooling: str, targets: list[str]
) -> None:
    folder = save_tiny_backbone(tmp_path / "base", family=family, num_layers=1)
    edit_json(folder / "config.json", {"classifier_pooling": pooling})
    base = PeftBase.of(folder)
    saved = {"modernbert": "head", "eurobert": "dense"}[family]
    config = peft.LoraConfig(
        target_modules=targets, r=3, modules_to_save=[saved], task_type="SEQ_CLS"
    )
    meaning = {**id2label(3), "classifier_pooling": pooling}
    save(base.train(config, num_labels=3, seed=1), tmp_path / "it", meaning=meaning)
    theirs = base.load(tmp_path / "it", "SEQ_CLS", 3)

    assert isinstance(same_as(theirs, tmp_path / "it", base.backbone).spec.method, Lora)

    edit_json(tmp_path / "it" / "config.json", {"classifier_pooling": None})
    with raises("unsupported_import", match="classifier_pooling"):
        import_peft(Checkpoint(tmp_path / "it"), base.backbone)
