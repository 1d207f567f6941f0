"""Whether a folder was made from the backbone at hand: the same shape, the same token ids."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Final

from pydantic import JsonValue
from tokenizers import Tokenizer

from nunatak_artifact.errors import CorruptFileError, ForeignBackboneError, UnsupportedImportError
from nunatak_artifact.interchange.adapter_folder import read_bytes
from nunatak_artifact.interchange.transformers_layout import FAMILIES
from nunatak_model import INT8_SUFFIX, Backbone, BackboneConfig, UnsupportedBackboneError
from nunatak_model.architectures import config_from

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZING_PARTS: Final = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
"""What decides token ids. Saved truncation and padding do not: each task has its own length."""
MAX_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
"""That of XLM-R, the largest of the family, has 17 MB."""


def check_exact(backbone: Backbone) -> None:
    """Refuse a quantized backbone: other programs compute other numbers.

    Raises:
        UnsupportedBackboneError: it is one.
    """
    if backbone.is_quantized:
        original = backbone.name.removesuffix(INT8_SUFFIX)
        raise UnsupportedBackboneError(
            f"{backbone.name!r} computes in integers and other programs do not, so their answers "
            f"would differ; use {original!r} for import and export"
        )


def check_shape(folder: Path, backbone: Backbone) -> None:
    """Refuse a `config.json` of an encoder that is not shaped as the backbone.

    Raises:
        UnsupportedImportError: another architecture.
        InvalidFolderError: there is no sound `config.json`.
        ForeignBackboneError: another shape.
        UnsupportedBackboneError: a variant of the family whose layers are computed differently.
    """
    raw = _read_config(folder)
    if raw.get("model_type") not in FAMILIES:
        raise UnsupportedImportError(
            folder.name,
            f"its model_type is {raw.get('model_type')!r}",
            f"checkpoints are read of {', '.join(FAMILIES)}",
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
    data = read_bytes(folder, TOKENIZER, limit=MAX_TOKENIZER_BYTES)
    try:
        theirs = _normalised(data.decode())
    except Exception as error:  # the library raises nothing more specific
        raise CorruptFileError(folder.name, TOKENIZER, f"is no tokenizer: {error}") from error
    ours = _normalised(backbone.tokenizer.definition)
    differing = [part for part in TOKENIZING_PARTS if ours.get(part) != theirs.get(part)]
    if differing:
        names = ", ".join("vocabulary" if part == "model" else part for part in differing)
        raise ForeignBackboneError(folder.name, backbone.name, f"its tokenizer differs in: {names}")


def _read_config(folder: Path) -> dict[str, JsonValue]:
    try:
        raw: JsonValue = json.loads(read_bytes(folder, CONFIG))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(folder.name, CONFIG, f"is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CorruptFileError(folder.name, CONFIG, "is no JSON object")
    return raw


def _config(folder: Path, raw: dict[str, JsonValue]) -> BackboneConfig:
    try:
        return config_from(raw)
    except KeyError as error:
        raise CorruptFileError(folder.name, CONFIG, f"has no field {error}") from error
    except (TypeError, ValueError) as error:
        raise CorruptFileError(folder.name, CONFIG, f"does not read: {error}") from error


def _normalised(definition: str) -> dict[str, JsonValue]:
    # Read and written by one version of the library: spellings of old versions become alike.
    return json.loads(Tokenizer.from_str(definition).to_str())
