# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM

from doubles.backbones import tiny_backbone
from nunatak_model import Encoding
from nunatak_training.pretraining.language_head import (
    NORM_BIAS,
    NORM_WEIGHT,
    OUTPUT_BIAS,
    language_loss,
)
from nunatak_training.pretraining.masking import MaskedText


def test_loss_equals_that_of_transformers_masked_language_model() -> None:
    backbone = tiny_backbone(num_layers=1)
    config = backbone.config
    torch.manual_seed(0)
    model: Any = BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_width,
            num_hidden_layers=1,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_width,
        )
    ).eval()
    head = model.cls.predictions
    hidden = torch.randn(2, 6, config.hidden_width)
    places = torch.tensor([[1, 4], [2, 3]])
    token_ids = torch.tensor([[7, 8], [9, 10]])
    labels = torch.full((2, 6), -100).scatter(1, places, token_ids)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
        expected = model.loss_function(head(hidden), labels, vocab_size=config.vocab_size)
        vectors = head.transform.dense(hidden)
        norm = head.transform.LayerNorm

        found = language_loss(
            list(vectors),
            [_text(places[row], token_ids[row]) for row in range(2)],
            {NORM_WEIGHT: norm.weight, NORM_BIAS: norm.bias, OUTPUT_BIAS: head.bias},
            head.decoder.weight,
            epsilon=norm.eps,
        )

    torch.testing.assert_close(found, expected)


def _text(places: torch.Tensor, token_ids: torch.Tensor) -> MaskedText:
    nothing = Encoding(token_ids=(), type_ids=())
    return MaskedText(encoding=nothing, places=places, token_ids=token_ids)
