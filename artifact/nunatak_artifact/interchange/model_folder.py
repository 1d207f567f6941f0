"""The files of a model folder of transformers."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import (
    save_file,  # pyright: ignore[reportUnknownVariableType] - its paths are typed partly
)
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_artifact.interchange.compatibility import CONFIG, TOKENIZER
from nunatak_model import Backbone
from nunatak_model.checkpoint import WEIGHTS


def write_model(
    folder: Path,
    config: Mapping[str, JsonValue],
    weights: Mapping[str, Tensor],
    backbone: Backbone,
    *,
    max_length: int,
) -> None:
    """Write configuration, weights and the backbone's tokenizer.

    Args:
        folder: an empty one.
        config: of `config.json`.
        weights: by stored name.
        backbone: whose tokenizer reads the texts.
        max_length: tokens that the tokenizer should cut texts to.
    """
    _write(folder / CONFIG, config)
    (folder / TOKENIZER).write_text(backbone.tokenizer.definition, encoding="utf-8")
    _write(folder / "tokenizer_config.json", _tokenizer_config(backbone, max_length))
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in weights.items()},
        folder / WEIGHTS,
        metadata={"format": "pt"},
    )


def _tokenizer_config(backbone: Backbone, max_length: int) -> dict[str, JsonValue]:
    tokenizer = Tokenizer.from_str(backbone.tokenizer.definition)
    inputs: list[JsonValue] = ["input_ids", "attention_mask"]
    if backbone.config.num_token_types > 1:
        inputs.append("token_type_ids")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        "pad_token": tokenizer.id_to_token(backbone.config.padding_id),
    }


def _write(path: Path, value: Mapping[str, JsonValue]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
