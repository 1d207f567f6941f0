"""ModernBERT against transformers' own classes: every setting that changes the results."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from doubles.backbones import WINDOW
from doubles.checkpoints import branch_of, encodings, loaded_task, published_logits, save_checkpoint
from doubles.checkpoints import logits as logits_of
from doubles.encoders import (
    assert_rows_equal_published,
    assert_same_hidden_states,
    saved,
    tiny_encoder,
)
from doubles.published import AUTO_CLASSES, TwinFactory
from doubles.refusals import raises
from doubles.sentence_folders import edit
from nunatak_contract.enums import HeadKind, LinearMap, LogitUse
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_exchange.checkpoint import Checkpoint
from nunatak_exchange.checks import ImportChoices
from nunatak_exchange.transformers_export import export_transformers
from nunatak_exchange.transformers_import import import_transformers
from nunatak_model import load_backbone

LONGEST = 160
METHODS: tuple[Method, ...] = (
    HeadOnly(),
    TopK(num_layers=1),
    TopK(num_layers=3),
    Lora(rank=4, alpha=8.0, targets=tuple(LinearMap)),
    Ia3(),
    Ia3(scaled_outputs=tuple(LinearMap), scaled_inputs=()),
    Bottleneck(size=8),
    Full(),
)
KINDS = (HeadKind.SEQUENCE_CLASSIFICATION, HeadKind.TOKEN_CLASSIFICATION)
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
    "head": {"classifier_bias": True, "classifier_activation": "relu"},
    "mean": {"classifier_pooling": "mean"},
    "tanh-gelu": {"hidden_activation": "gelu_new"},
    "all-global": {"layer_types": ["full_attention"] * 3},
    "all-local": {"layer_types": ["sliding_attention"] * 3, "local_attention": 6},
    "rotation": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        }
    },
    "epsilon": {"norm_eps": 1e-2},
    "yarn": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 40,
            },
            "sliding_attention": {"rope_type": "linear", "rope_theta": 20.0, "factor": 2.0},
        }
    },
}
TOGETHER: list[list[str]] = [
    ["plain"],
    ["biases", "head", "mean", "tanh-gelu", "epsilon"],
    ["all-local", "rotation"],
    ["all-global", "yarn"],
]
"""Every variant, next to those that change other fields."""
assert {name for names in TOGETHER for name in names} == VARIANTS.keys()


LENGTHS = (1, WINDOW // 2, WINDOW // 2 + 1, WINDOW // 2 + 2, 61, LONGEST)
"""Lengths of texts within the window of a local layer and beyond."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_row_of_every_variant_equals_its_published_model(variant: str, tmp_path: Path) -> None:
    options = {"max_position_embeddings": LONGEST} | VARIANTS[variant]
    factory = TwinFactory(tmp_path, family="modernbert", num_layers=3, options=options)
    # Half of the methods in one variant, the other half in the next, then both with other heads.
    turn = list(VARIANTS).index(variant)
    kinds = islice(cycle(KINDS), turn // 2 % len(KINDS), None)
    methods = METHODS[turn % 2 :: 2]
    twins = [factory.twin(method, kind=kind) for method, kind in zip(methods, kinds, strict=False)]
    assert_rows_equal_published(factory, twins, LENGTHS)


@pytest.mark.parametrize(("kind", "variants"), [*zip(AUTO_CLASSES, TOGETHER, strict=True)], ids=str)
def test_every_variant_answers_alike_imported_and_exported_back(
    kind: HeadKind, variants: Sequence[str], tmp_path: Path
) -> None:
    options = {name: it for variant in variants for name, it in VARIANTS[variant].items()}
    factory = TwinFactory(tmp_path / "base", family="modernbert", num_layers=3, options=options)
    backbone = factory.backbone
    there, back = tmp_path / "there", tmp_path / "back"
    twin = save_checkpoint(factory, there, method=TopK(num_layers=1), kind=kind)
    choices = ImportChoices(logit_use=LogitUse.RANKING if kind is HeadKind.RANKING else None)

    imported = import_transformers(Checkpoint(there), backbone, choices)
    branch = branch_of(imported, backbone)
    export_transformers(loaded_task(backbone, branch), back, backbone)
    model = AUTO_CLASSES[kind].from_pretrained(back).eval()

    assert imported.spec == twin.branch.spec
    assert import_transformers(Checkpoint(back), backbone, choices).spec == imported.spec
    for encoding in encodings(backbone):
        expected = twin.expected(encoding)
        for found in (logits_of(backbone, branch, encoding), published_logits(model, encoding)):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_an_encoder_that_is_computed_otherwise_is_another_backbone(tmp_path: Path) -> None:
    factory = TwinFactory(tmp_path / "base", family="modernbert")
    save_checkpoint(factory, tmp_path / "tuned")
    edit(tmp_path / "tuned" / "config.json", {"local_attention": 4})

    with raises("foreign_backbone", match="its reach is 2, the backbone's is 4"):
        import_transformers(Checkpoint(tmp_path / "tuned"), factory.backbone)


def tiny_model(**changes: object) -> PreTrainedModel:
    return tiny_encoder("modernbert", changes, num_layers=4)


def test_far_positions_are_turned_as_in_transformers(tmp_path: Path) -> None:
    model = saved(tmp_path, tiny_model(max_position_embeddings=8192), "modernbert")

    assert_same_hidden_states(load_backbone(tmp_path), model, lengths=[1500])


def test_the_configuration_is_read_in_its_old_spelling_too(tmp_path: Path) -> None:
    model = saved(tmp_path, tiny_model(), "modernbert")
    new_digest = load_backbone(tmp_path).digest
    thetas = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
    old = {"layer_types": ..., "rope_parameters": ..., "global_attn_every_n_layers": 2}
    edit(tmp_path / "config.json", old | thetas)

    backbone = load_backbone(tmp_path)

    assert backbone.digest == new_digest
    assert_same_hidden_states(backbone, model, lengths=LENGTHS)


def test_the_window_has_a_second_name_which_decides(tmp_path: Path) -> None:
    saved(tmp_path, tiny_model(), "modernbert")
    edit(tmp_path / "config.json", {"sliding_window": 1})
    model = AutoModel.from_pretrained(tmp_path).eval()

    assert_same_hidden_states(load_backbone(tmp_path), model, lengths=LENGTHS)


def test_stretched_positions_are_read_in_their_old_spelling_too(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    saved(tmp_path, tiny_model(), "modernbert")
    plain_digest = load_backbone(tmp_path).digest
    thetas = {"global_rope_theta": 900.0, "local_rope_theta": 900.0}
    old = {"rope_parameters": ..., "rope_scaling": scaling}
    edit(tmp_path / "config.json", old | thetas)
    model = AutoModel.from_pretrained(tmp_path).eval()

    backbone = load_backbone(tmp_path)

    assert backbone.digest != plain_digest
    assert_same_hidden_states(backbone, model, lengths=LENGTHS)


def test_a_masked_language_model_is_the_same_backbone_and_gives_heads_their_start(
    tmp_path: Path,
) -> None:
    model = tiny_encoder("modernbert", {}, num_layers=4, kind=AutoModelForMaskedLM)
    encoder = cast("PreTrainedModel", saved(tmp_path, model, "modernbert").get_submodule("model"))
    backbone = load_backbone(tmp_path)

    assert_same_hidden_states(backbone, encoder, lengths=LENGTHS)
    assert backbone.pooler is not None
    assert backbone.pooler_norm is not None
    assert torch.equal(backbone.pooler.weight, model.get_parameter("head.dense.weight"))
    assert torch.equal(backbone.pooler_norm.weight, model.get_parameter("head.norm.weight"))
