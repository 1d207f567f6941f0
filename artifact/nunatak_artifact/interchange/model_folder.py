"""The files of a model folder of transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue
from safetensors.torch import (
    save_file,  # pyright: ignore[reportUnknownVariableType] - its paths are typed partly
)
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_artifact.interchange.compatibility import CONFIG, TOKENIZER
from nunatak_model import Backbone
from nunatak_model.checkpoint import WEIGHTS

MASKS: Final = ("[MASK]", "<mask>")


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
    if backbone.tokenizer.tells_texts_apart:
        inputs.append("token_type_ids")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        **_special_tokens(tokenizer, backbone),
    }


def _special_tokens(tokenizer: Tokenizer, backbone: Backbone) -> dict[str, JsonValue]:
    """The special tokens by transformers' names.

    Its pipelines spell an unknown token as the text does, and so must know which one it is. Others
    are named only where `tokenizer.json` has them: naming adds a token to the vocabulary.
    """
    tokenizer.no_truncation()
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    names = dict[str, str | None]()
    if len(ends := tokenizer.encode("").tokens) == 2:
        first, last = ends
        names |= {"cls_token": first, "sep_token": last, "bos_token": first, "eos_token": last}
    names["mask_token"] = next((mask for mask in MASKS if mask in added), None)
    unknown = backbone.tokenizer.unknown_id
    return {
        "pad_token": tokenizer.id_to_token(backbone.config.padding_id),
        **({} if unknown is None else {"unk_token": tokenizer.id_to_token(unknown)}),
        **{name: token for name, token in names.items() if token in added},
    }


def _write(path: Path, value: Mapping[str, JsonValue]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
