"""NomicBERT and GTE against transformers' own classes, which save checkpoints under other names."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, GteConfig, NomicBertConfig, PreTrainedModel

from doubles.backbones import NOMIC_LIKE, Family, save_tokenizer, tiny_tokenizer
from doubles.checkpoints import encodings, logits, published_logits
from doubles.published import TwinFactory
from nunatak_contract.enums import AdapterInput, Norms
from nunatak_contract.methods import Bottleneck, HeadOnly
from nunatak_model import Encoding, build_branch, load_backbone, run_trunk

TOLERANCE = 1e-4
CONFIGS: dict[str, Any] = {"nomic_bert": NomicBertConfig, "gte": GteConfig}
AUTO_MODEL: Any = AutoModel
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "nomic": ("nomic_bert", {}),
    "nomic-theta": ("nomic_bert", {"rope_parameters": {"rope_theta": 70.0}}),
    "gte": ("gte", {}),
    "gte-types": ("gte", {"type_vocab_size": 2, "hidden_act": "silu"}),
    "gte-untyped": ("gte", {"type_vocab_size": 0}),
    "gte-yarn": ("gte", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
}


def saved(folder: Path, name: str, changes: dict[str, object]) -> Path:
    """Write a random encoder."""
    config = CONFIGS[name](
        **{
            "vocab_size": tiny_tokenizer("bert").get_vocab_size(),
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            **changes,
        }
    )
    model = AUTO_MODEL.from_config(config)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.3
        is_gain = key.endswith("weight") and parameter.dim() == 1
        parameter.data = 1.0 + 0.1 * noise if is_gain else noise
    model.save_pretrained(folder)
    save_tokenizer(folder, "bert")
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


@pytest.mark.parametrize("family", NOMIC_LIKE)
def test_adapters_that_read_the_norm_of_the_sum_compute_their_equation(
    family: Family, tmp_path: Path
) -> None:
    """The equation is from Pfeiffer et al. 2020, "MAD-X" (arXiv:2005.00052), sec. 3.2.1."""
    factory = TwinFactory(tmp_path, family=family, num_layers=2)
    twin = factory.twin(Bottleneck(size=8, first_layer=1))
    method = Bottleneck(size=8, first_layer=1, reads=AdapterInput.NORMED_SUM, norms=Norms.FROZEN)
    parameters = {name: it for name, it in twin.branch.parameters.items() if "_norm." not in name}
    spec = replace(twin.branch.spec, method=method)
    branch = build_branch(spec, factory.backbone.config, parameters)
    model = cast("PreTrainedModel", factory.twin(HeadOnly()).model)
    layer = model.get_submodule(f"{family}.layers.1")
    for norm, place in zip(
        ("post_attention_layernorm", "post_mlp_layernorm"),
        ("attention_adapter", "feedforward_adapter"),
        strict=True,
    ):
        adapter = {
            key: parameters[f"layers.1.{place}.{key}"]
            for key in ("down.weight", "down.bias", "up.weight", "up.bias")
        }
        module = layer.get_submodule(norm)
        module.forward = adapted_norm(module.forward, adapter)
    head = {"classifier": "head.output", f"{family}.pooler.dense": "head.dense"}
    for theirs, ours in head.items():
        for kind in ("weight", "bias"):
            model.get_parameter(f"{theirs}.{kind}").data = parameters[f"{ours}.{kind}"]

    for text in encodings(factory.backbone):
        expected = published_logits(model, text)
        found = logits(factory.backbone, branch, text)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def adapted_norm(
    norm: Callable[[Tensor], Tensor], adapter: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    def run(summed: Tensor) -> Tensor:
        inner = functional.linear(norm(summed), adapter["down.weight"], adapter["down.bias"])
        added = functional.linear(inner.tanh(), adapter["up.weight"], adapter["up.bias"])
        return norm(summed + added)

    return run
