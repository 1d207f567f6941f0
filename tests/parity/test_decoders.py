"""Llama and Qwen3 against transformers' own classes: every setting that changes the results."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from doubles.backbones import DECODERS, Family, encoded, rope, save_tiny_backbone
from doubles.encoders import (
    TOLERANCE,
    assert_rows_equal_published,
    assert_same_hidden_states,
    saved,
    tiny_encoder,
)
from doubles.published import TwinFactory
from doubles.sentence_folders import edit
from nunatak_contract.enums import LinearMap
from nunatak_contract.methods import Bottleneck, Full, HeadOnly, Ia3, Lora, Method, TopK
from nunatak_model import Row, forward, load_backbone

LONGEST = 160
PADDING = 0
"""`pad_token_id` of the tiny decoders."""
METHODS: tuple[Method, ...] = (
    HeadOnly(),
    TopK(num_layers=1),
    Lora(rank=4, alpha=8.0, targets=tuple(LinearMap)),
    Ia3(scaled_outputs=tuple(LinearMap), scaled_inputs=()),
    Bottleneck(size=8),
    Full(),
)


VARIANTS: dict[str, tuple[Family, dict[str, object]]] = {
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "attention-bias": ("qwen3", {"attention_bias": True}),
    "one-key-head": ("llama", {"num_key_value_heads": 1}),
    "own-key-heads": ("qwen3", {"num_key_value_heads": 4}),
    "narrow-heads": ("llama", {"head_dim": 4}),
    "epsilon": ("qwen3", {"rms_norm_eps": 1e-2}),
    "activation": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "theta": ("qwen3", rope("default")),
    "linear": ("llama", rope("linear", factor=4.0)),
    "llama3": (
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "yarn": ("qwen3", rope("yarn", factor=4.0, original_max_position_embeddings=40)),
    "yarn-settings": (
        "llama",
        rope(
            "yarn",
            factor=2.0,
            beta_fast=8.0,
            beta_slow=2.0,
            truncate=False,
            mscale=1.5,
            mscale_all_dim=0.5,
        ),
    ),
    "yarn-attention": ("qwen3", rope("yarn", factor=2.0, attention_factor=0.7)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_row_of_every_variant_equals_its_published_model(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    options = {"max_position_embeddings": LONGEST} | changes
    factory = TwinFactory(tmp_path, family=family, num_layers=2, options=options)
    # Half of the methods in one variant, the other half in the next.
    twins = [factory.twin(method) for method in METHODS[list(VARIANTS).index(variant) % 2 :: 2]]
    assert_rows_equal_published(factory, twins, (1, 31, 31, LONGEST))


@pytest.mark.parametrize("family", DECODERS)
def test_the_padding_token_never_counts_as_the_last(family: Family, tmp_path: Path) -> None:
    """In many decoders, the padding token is also the token that ends a text."""
    factory = TwinFactory(tmp_path, family=family, num_layers=2)
    twin = factory.twin(TopK(num_layers=1))
    texts = ((7, 8, PADDING), (7, PADDING, PADDING), (7, PADDING, 9), (PADDING,), (PADDING, 7))
    encodings = [encoded(it) for it in texts]

    with torch.inference_mode():
        rows = [Row(encoding=encoding, branch=twin.branch) for encoding in encodings]
        logits = forward(factory.backbone, rows)

    for encoding, answer in zip(encodings, logits, strict=True):
        torch.testing.assert_close(answer, twin.expected(encoding), atol=TOLERANCE, rtol=0)
    assert (logits[0] - logits[1]).abs().max() > TOLERANCE


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}], ids=str)
def test_a_language_model_is_the_same_backbone(changes: dict[str, object], tmp_path: Path) -> None:
    model = tiny_encoder("qwen3", changes, num_layers=2, kind=AutoModelForCausalLM)
    encoder = cast("PreTrainedModel", saved(tmp_path, model, "qwen3").get_submodule("model"))

    assert_same_hidden_states(load_backbone(tmp_path), encoder, lengths=[12])


def test_the_configuration_is_read_in_its_old_spelling_too(tmp_path: Path) -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 16}
    new = {"rope_type": "yarn", "rope_theta": 500.0, **scaling}
    saved(tmp_path, tiny_encoder("qwen3", {"rope_parameters": new}), "qwen3")
    new_digest = load_backbone(tmp_path).digest
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **scaling}}
    edit(tmp_path / "config.json", {"rope_parameters": ..., **old})

    assert load_backbone(tmp_path).digest == new_digest


TEXTS = ("where is it?", "It's  1234 caf\u00e9s,\n\n isn't it", "a")
TOKENIZERS: Any = AutoTokenizer
QWEN_NAMES = ("unk_token", "eos_token", "pad_token")
"""The tokens that the class would add to a vocabulary without its own."""
LLAMA_ENDS = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}


def folder_with(folder: Path, family: Family, settings: dict[str, object]) -> Path:
    save_tiny_backbone(folder, family=family, num_layers=1, is_added=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("llama", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", **LLAMA_ENDS}),
        ("qwen3", {"tokenizer_class": "LlamaTokenizer"}),
        ("llama", {"tokenizer_class": "Qwen2Tokenizer", **dict.fromkeys(QWEN_NAMES, "</s>")}),
        ("llama", {**LLAMA_ENDS, "add_bos_token": False}),
        ("qwen3", {"add_eos_token": True, "eos_token": "<|endoftext|>"}),
    ],
    ids=str,
)
def test_texts_and_pairs_have_the_tokens_of_transformers(
    family: Family, settings: dict[str, object], tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, family, settings)
    tokenizer = TOKENIZERS.from_pretrained(str(folder))
    inputs = [*TEXTS, (TEXTS[0], TEXTS[1])]

    ours = load_backbone(folder).tokenizer.encode(inputs, max_length=500)

    for text, encoding in zip(inputs, ours, strict=True):
        theirs = tokenizer(*((text,) if isinstance(text, str) else text))["input_ids"]
        assert list(encoding.token_ids) == theirs
