"""ModernBERT, Llama and Qwen3 against transformers' own classes, in every setting that counts."""

import json
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
)

from doubles.backbones import DECODERS, WINDOW, Family, encoded, rope, save_tiny_backbone
from doubles.checkpoints import branch_of, encodings, loaded_task, published_logits, save_checkpoint
from doubles.checkpoints import logits as logits_of
from doubles.encoders import (
    TOLERANCE,
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
from nunatak_model import Row, forward, load_backbone

LONGEST = 160
LENGTHS = (1, WINDOW // 2, WINDOW // 2 + 1, WINDOW // 2 + 2, 61, LONGEST)
"""Lengths of texts within the window of a local layer and beyond."""
PADDING = 0
"""`pad_token_id` of the tiny decoders."""
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
MODERNBERT: dict[str, dict[str, object]] = {
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
"""Every variant of ModernBERT, next to those that change other fields."""
assert {name for names in TOGETHER for name in names} == MODERNBERT.keys()
VARIANTS: dict[str, tuple[Family, dict[str, object]]] = {
    **{f"modernbert-{name}": ("modernbert", changes) for name, changes in MODERNBERT.items()},
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
    factory = TwinFactory(tmp_path, family=family, num_layers=3, options=options)
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
    options = {name: it for variant in variants for name, it in MODERNBERT[variant].items()}
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


def test_far_positions_are_turned_as_in_transformers(tmp_path: Path) -> None:
    far = {"max_position_embeddings": 8192}
    model = saved(tmp_path, tiny_encoder("modernbert", far, num_layers=4), "modernbert")

    assert_same_hidden_states(load_backbone(tmp_path), model, lengths=[1500])


YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
THETAS = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
SPELLINGS: dict[str, tuple[Family, dict[str, object], dict[str, object], bool]] = {
    "modernbert": (
        "modernbert",
        {},
        {"layer_types": ..., "rope_parameters": ..., "global_attn_every_n_layers": 2, **THETAS},
        True,
    ),
    "stretched modernbert": (
        "modernbert",
        {},
        {
            "global_rope_theta": 900.0,
            "local_rope_theta": 900.0,
            "rope_parameters": ...,
            "rope_scaling": {"rope_type": "yarn", **YARN},
        },
        False,
    ),
    "second name of the window, which decides": ("modernbert", {}, {"sliding_window": 1}, False),
    "qwen3": (
        "qwen3",
        rope("yarn", **YARN),
        {"rope_parameters": ..., "rope_theta": 500.0, "rope_scaling": {"type": "yarn", **YARN}},
        True,
    ),
}
"""Family, settings, other spellings of settings, and whether they say the same."""


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_configuration_is_read_in_its_other_spellings_too(name: str, tmp_path: Path) -> None:
    family, changes, other, is_same = SPELLINGS[name]
    saved(tmp_path, tiny_encoder(family, changes, num_layers=4), family)
    digest = load_backbone(tmp_path).digest
    edit(tmp_path / "config.json", other)
    model = AutoModel.from_pretrained(tmp_path).eval()

    backbone = load_backbone(tmp_path)

    assert (backbone.digest == digest) is is_same
    assert_same_hidden_states(backbone, model, lengths=LENGTHS)


@pytest.mark.parametrize(
    ("family", "changes", "kind"),
    [
        ("modernbert", {}, AutoModelForMaskedLM),
        ("qwen3", {}, AutoModelForCausalLM),
        ("qwen3", {"tie_word_embeddings": True}, AutoModelForCausalLM),
    ],
    ids=["modernbert", "qwen3", "tied"],
)
def test_a_language_model_is_the_same_backbone(
    family: Family,
    changes: dict[str, object],
    kind: Any,  # noqa: ANN401 - untyped there
    tmp_path: Path,
) -> None:
    model = tiny_encoder(family, changes, num_layers=4, kind=kind)
    encoder = cast("PreTrainedModel", saved(tmp_path, model, family).get_submodule("model"))
    backbone = load_backbone(tmp_path)

    assert_same_hidden_states(backbone, encoder, lengths=LENGTHS)
    if family == "modernbert":
        # Heads start from the block of the masked language model.
        assert backbone.pooler is not None
        assert backbone.pooler_norm is not None
        assert torch.equal(backbone.pooler.weight, model.get_parameter("head.dense.weight"))
        assert torch.equal(backbone.pooler_norm.weight, model.get_parameter("head.norm.weight"))


TEXTS = ("where is it?", "It's  1234 caf\u00e9s,\n\n isn't it", "a")
TOKENIZERS: Any = AutoTokenizer
QWEN_NAMES = ("unk_token", "eos_token", "pad_token")
"""The tokens that the class would add to a vocabulary without its own."""
LLAMA_ENDS = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}


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
    save_tiny_backbone(tmp_path, family=family, num_layers=1, is_added=False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = TOKENIZERS.from_pretrained(str(tmp_path))
    inputs = [*TEXTS, (TEXTS[0], TEXTS[1])]

    ours = load_backbone(tmp_path).tokenizer.encode(inputs, max_length=500)

    for text, encoding in zip(inputs, ours, strict=True):
        theirs = tokenizer(*((text,) if isinstance(text, str) else text))["input_ids"]
        assert list(encoding.token_ids) == theirs
