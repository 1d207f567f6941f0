"""Random encoders as transformers saves them, compared with our backbones and tasks."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel

from doubles.backbones import Family, encoded, random_text, save_tokenizer, tiny_config
from doubles.published import Twin, TwinFactory, config_of, randomise
from doubles.published_names import WITHOUT_TYPES
from nunatak_model import Backbone, Encoding, Row, forward, run_trunk

TOLERANCE = 1e-4


def encoding_of(num_tokens: int, *, num_types: int = 1) -> Encoding:
    return Encoding(
        token_ids=tuple(5 + (7 * position) % 90 for position in range(num_tokens)),
        type_ids=tuple(int(num_types > 1 and 2 * p > num_tokens) for p in range(num_tokens)),
    )


def tiny_encoder(
    family: Family,
    changes: Mapping[str, object],
    *,
    num_layers: int = 3,
    kind: Any = AutoModel,  # noqa: ANN401 - untyped there
) -> PreTrainedModel:
    raw = {**tiny_config(num_layers=num_layers, family=family), **changes}
    return kind.from_config(config_of(raw))


def saved(
    folder: Path, model: PreTrainedModel, family: Family, *, deviation: float = 0.3
) -> PreTrainedModel:
    randomise(model, torch.Generator().manual_seed(1), deviation=deviation)
    model.eval().save_pretrained(folder)
    save_tokenizer(folder, family)
    return model


def assert_same_hidden_states(
    backbone: Backbone, model: PreTrainedModel, *, lengths: Sequence[int] = ()
) -> None:
    """Compare the states above the last layer; without lengths, of texts up to the longest."""
    config = backbone.config
    lengths = lengths or [1, 2, 9, 33, min(64, config.max_tokens), config.max_tokens]
    encodings = [encoding_of(length, num_types=config.num_token_types) for length in lengths]
    if config.counts_positions_from_padding:
        encodings.append(encoded((0, 30, 1, 31, 1, 32, 2)))

    with torch.inference_mode():
        trunk = run_trunk(backbone, encodings, depth=config.num_layers)
        for encoding in encodings:
            types = {"token_type_ids": torch.tensor([encoding.type_ids])}
            expected = model(
                input_ids=torch.tensor([encoding.token_ids]),
                attention_mask=torch.ones(1, encoding.num_tokens, dtype=torch.long),
                **({} if config.model_type in WITHOUT_TYPES else types),
            ).last_hidden_state[0]
            torch.testing.assert_close(trunk.hidden[encoding], expected, atol=TOLERANCE, rtol=0)


def assert_rows_equal_published(
    factory: TwinFactory, twins: Sequence[Twin], lengths: Sequence[int]
) -> None:
    """Ask all twins about random texts in one shuffled batch."""
    chance = random.Random(4)
    encodings = [random_text(chance, it) for it in lengths]
    questions = [(twin, encoding) for twin in twins for encoding in encodings]
    chance.shuffle(questions)

    rows = [Row(encoding=encoding, branch=twin.branch) for twin, encoding in questions]
    with torch.inference_mode():
        logits = forward(factory.backbone, rows)

    for (twin, encoding), answer in zip(questions, logits, strict=True):
        torch.testing.assert_close(answer, twin.expected(encoding), atol=TOLERANCE, rtol=0)
