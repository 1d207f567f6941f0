"""Whether a folder was made from the backbone at hand: the same shape, the same token ids."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Final

from pydantic import JsonValue
from tokenizers import Tokenizer

from nunatak_artifact.errors import (
    ForeignBackboneError,
    InvalidFolderError,
    UnsupportedImportError,
)
from nunatak_artifact.interchange.checkpoint_folder import read_object
from nunatak_model import Backbone, BackboneConfig
from nunatak_model.bert_family import config_from, is_supported

TOKENIZER = "tokenizer.json"
TOKENIZING_PARTS: Final = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
"""What decides token ids. Saved truncation and padding do not: each task has its own length."""


def check_shape(folder: Path, raw: dict[str, JsonValue], backbone: Backbone) -> None:
    """Refuse a `config.json` of an encoder that is not shaped as the backbone.

    Raises:
        UnsupportedImportError: another architecture.
        InvalidFolderError: a field is missing or malformed.
        ForeignBackboneError: another shape.
        UnsupportedBackboneError: a variant of the family whose layers are computed differently.
    """
    if not is_supported(raw):
        raise UnsupportedImportError(
            folder.name,
            f"its model_type is {raw.get('model_type')!r}",
            "expected a model of the BERT family",
        )
    theirs, ours = _config(folder, raw), backbone.config
    differences = [
        f"its {field.name} is {getattr(theirs, field.name)}, "
        f"the backbone's is {getattr(ours, field.name)}"
        for field in fields(BackboneConfig)
        if getattr(theirs, field.name) != getattr(ours, field.name)
    ]
    if differences:
        raise ForeignBackboneError(folder.name, backbone.name, "; ".join(differences))


def check_tokenizer(folder: Path, backbone: Backbone) -> None:
    """Refuse a folder whose tokenizer may give other token ids than the backbone's.

    Raises:
        InvalidFolderError: there is no sound `tokenizer.json`.
        ForeignBackboneError: it differs in what decides token ids.
    """
    raw = read_object(folder, TOKENIZER)
    try:
        theirs = _normalised(json.dumps(raw))
    except Exception as error:  # the library raises nothing more specific
        raise InvalidFolderError(
            folder.name, f"{TOKENIZER} is not a tokenizer this version can read: {error}"
        ) from error
    ours = _normalised(backbone.tokenizer.definition)
    differing = [part for part in TOKENIZING_PARTS if ours.get(part) != theirs.get(part)]
    if differing:
        names = ", ".join("vocabulary" if part == "model" else part for part in differing)
        raise ForeignBackboneError(folder.name, backbone.name, f"its tokenizer differs in: {names}")


def _config(folder: Path, raw: dict[str, JsonValue]) -> BackboneConfig:
    try:
        return config_from(raw)
    except KeyError as error:
        raise InvalidFolderError(folder.name, f"config.json has no field {error}") from error
    except (TypeError, ValueError) as error:
        raise InvalidFolderError(folder.name, f"config.json is malformed: {error}") from error


def _normalised(definition: str) -> dict[str, JsonValue]:
    # Read and written by one version of the library: spellings of old versions become alike.
    return json.loads(Tokenizer.from_str(definition).to_str())
