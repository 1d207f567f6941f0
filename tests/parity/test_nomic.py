"""NomicBERT and GTE against transformers' own classes, which save checkpoints under other names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GteConfig,
    NomicBertConfig,
)

from doubles.backbones import tiny_tokenizer
from doubles.checkpoints import branch_of, encodings, loaded_task, logits, published_logits
from nunatak_artifact.interchange import export_transformers, import_transformers
from nunatak_contract.enums import HeadKind, LinearMap
from nunatak_contract.methods import Ia3, Lora, Method, TopK
from nunatak_model import (
    Backbone,
    Branch,
    BranchSpec,
    Encoding,
    UnsupportedBackboneError,
    build_branch,
    default_head,
    initial_parameters,
    load_backbone,
    run_trunk,
)

TOLERANCE = 1e-4
CONFIGS: dict[str, Any] = {"nomic_bert": NomicBertConfig, "gte": GteConfig}
AUTO_MODEL: Any = AutoModel
AUTO_CLASSES: dict[HeadKind, Any] = {
    HeadKind.SEQUENCE_CLASSIFICATION: AutoModelForSequenceClassification,
    HeadKind.TOKEN_CLASSIFICATION: AutoModelForTokenClassification,
}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "nomic": ("nomic_bert", {}),
    "nomic-theta": ("nomic_bert", {"rope_parameters": {"rope_theta": 70.0}}),
    "gte": ("gte", {}),
    "gte-types": ("gte", {"type_vocab_size": 2, "hidden_act": "silu"}),
    "gte-untyped": ("gte", {"type_vocab_size": 0}),
    "gte-yarn": ("gte", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
}


def saved(
    folder: Path, name: str, changes: dict[str, object], kind: HeadKind | None = None
) -> Path:
    """Write a random model; the same arguments but the class give the same encoder."""
    config = CONFIGS[name](
        **{
            "vocab_size": tiny_tokenizer("bert").get_vocab_size(),
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "num_labels": 3,
            **changes,
        }
    )
    model = (AUTO_MODEL if kind is None else AUTO_CLASSES[kind]).from_config(config)
    for key, parameter in sorted(model.named_parameters()):
        seed = sum(key.removeprefix(f"{name}.").encode())
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.3
        is_gain = key.endswith("weight") and parameter.dim() == 1
        parameter.data = 1.0 + 0.1 * noise if is_gain else noise
    model.save_pretrained(folder)
    tiny_tokenizer("bert").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "TokenizersBackend",
                "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            }
        )
    )
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_gives_transformers_hidden_states(variant: str, tmp_path: Path) -> None:
    name, changes = VARIANTS[variant]
    backbone = load_backbone(saved(tmp_path, name, changes))
    model = AUTO_MODEL.from_pretrained(tmp_path).eval()
    num_types = backbone.config.num_token_types
    texts = [
        Encoding(
            token_ids=tuple(5 + (7 * place) % 90 for place in range(length)),
            type_ids=tuple(int(num_types > 1 and 2 * it > length) for it in range(length)),
        )
        for length in (1, 2, 33, 33, 64)
    ]

    with torch.inference_mode():
        trunk = run_trunk(backbone, texts, depth=3)
        for text in texts:
            expected = model(
                input_ids=torch.tensor([text.token_ids]),
                token_type_ids=torch.tensor([text.type_ids]) if num_types > 1 else None,
            ).last_hidden_state[0]
            torch.testing.assert_close(trunk.hidden[text], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", AUTO_CLASSES)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_fine_tuned_model_answers_alike_imported_and_exported_back(
    name: str, kind: HeadKind, tmp_path: Path
) -> None:
    auto_class = AUTO_CLASSES[kind]
    backbone = load_backbone(saved(tmp_path / "base", name, {}))
    there = saved(tmp_path / "tuned", name, {}, kind)
    model = auto_class.from_pretrained(there)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".layers.2." in key:
                parameter.mul_(1.5)
    model.save_pretrained(there)

    imported = import_transformers(there, backbone)
    branch = branch_of(imported, backbone)
    export_transformers(loaded_task(backbone, branch), tmp_path / "back", backbone)
    back = auto_class.from_pretrained(tmp_path / "back").eval()

    assert imported.spec.method == TopK(num_layers=1)
    for text in encodings(backbone):
        expected = published_logits(model.eval(), text)
        for found in (logits(backbone, branch, text), published_logits(back, text)):
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "method",
    [
        Lora(rank=3, alpha=6.0, targets=tuple(LinearMap)),
        Ia3(scaled_outputs=tuple(LinearMap), scaled_inputs=()),
    ],
    ids=lambda it: it.kind,
)
@pytest.mark.parametrize("name", CONFIGS)
def test_changed_maps_answer_as_the_model_into_which_they_are_merged(
    name: str, method: Method, tmp_path: Path
) -> None:
    backbone = load_backbone(saved(tmp_path / "base", name, {}))
    branch = random_branch(backbone, method)

    export_transformers(loaded_task(backbone, branch), tmp_path / "out", backbone)
    auto_class = AUTO_CLASSES[HeadKind.SEQUENCE_CLASSIFICATION]
    model = auto_class.from_pretrained(tmp_path / "out").eval()

    for text in encodings(backbone):
        found = logits(backbone, branch, text)
        torch.testing.assert_close(found, published_logits(model, text), atol=TOLERANCE, rtol=0)


def random_branch(backbone: Backbone, method: Method) -> Branch:
    kind = HeadKind.SEQUENCE_CLASSIFICATION
    spec = BranchSpec(method=method, head=default_head(backbone, kind=kind, num_labels=3))
    generator = torch.Generator().manual_seed(2)
    parameters = {
        name: it + 0.1 * torch.randn(it.shape, generator=generator)
        for name, it in initial_parameters(spec, backbone, generator=generator).items()
    }
    return build_branch(spec, backbone.config, parameters)


@pytest.mark.parametrize(
    "change",
    [
        {"n_embd": 64},
        {"use_rms_norm": True},
        {"rotary_scaling_factor": 2},
        {"num_experts": 8},
        {"head_dim": 4},
        {"model_type": "new"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    ],
    ids=str,
)
def test_a_variant_that_is_computed_differently_is_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    path = saved(tmp_path, "nomic_bert", {}) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(UnsupportedBackboneError, match="got"):
        load_backbone(tmp_path)
