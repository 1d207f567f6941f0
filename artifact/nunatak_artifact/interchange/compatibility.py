"""Whether a folder was made from the backbone at hand: the same shape, the same token ids."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue
from tokenizers import Tokenizer

from nunatak_artifact.errors import (
    CorruptFileError,
    ForeignBackboneError,
    InvalidFolderError,
    UnsupportedImportError,
)
from nunatak_artifact.interchange.adapter_folder import MAX_JSON_BYTES, has_file, read_bytes
from nunatak_artifact.interchange.transformers_layout import FAMILIES
from nunatak_model import (
    INT8_SUFFIX,
    Backbone,
    BackboneConfig,
    CorruptBackboneError,
    UnsupportedBackboneError,
)
from nunatak_model.architectures import config_from
from nunatak_model.tokenizer_settings import (
    TOKENIZER_CONFIG,
    check_settings,
    gives_token_types,
)

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
    raw = _read_object(folder, CONFIG)
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
    """Refuse a folder whose tokenizer may give other token ids or types than the backbone's.

    Raises:
        InvalidFolderError: there is no sound `tokenizer.json`.
        ForeignBackboneError: it differs in what decides token ids or types.
        UnsupportedImportError: as `check_reading`.
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
    check_reading(folder, backbone)


def check_reading(folder: Path, backbone: Backbone) -> None:
    """Refuse settings by which transformers reads texts otherwise than the backbone here.

    Files that the folder lacks are taken to be the backbone's.

    Raises:
        InvalidFolderError: a file is not sound.
        ForeignBackboneError: one of both gives token types and the other does not.
        UnsupportedImportError: transformers cuts or spells texts in a way that is not done here.
    """
    settings = read_settings(folder)
    config = _read_object(folder, CONFIG) if has_file(folder, CONFIG) else {}
    config = {"model_type": backbone.config.model_type, **config}
    ours = backbone.tokenizer.tells_texts_apart
    with import_errors(folder):
        check_settings(config, settings, read_definition(folder, backbone))
        if not ours and not _drops_types(backbone):
            return
        theirs = gives_token_types(config, settings)
    if ours != theirs:
        gives = {True: "gives token types", False: "gives none"}
        raise ForeignBackboneError(
            folder.name,
            backbone.name,
            f"its tokenizer {gives[theirs]} to the texts of a pair, the backbone's {gives[ours]}",
        )


def read_settings(folder: Path) -> dict[str, JsonValue]:
    """Read `tokenizer_config.json`; one that is not there is empty."""
    return _read_object(folder, TOKENIZER_CONFIG) if has_file(folder, TOKENIZER_CONFIG) else {}


def read_definition(folder: Path, backbone: Backbone) -> Mapping[str, Any]:
    """Read `tokenizer.json`; where there is none, it is the backbone's."""
    if has_file(folder, TOKENIZER):
        found = read_json(folder, TOKENIZER, limit=MAX_TOKENIZER_BYTES)
        return found if isinstance(found, dict) else {}
    return json.loads(backbone.tokenizer.definition)


def read_json(folder: Path, name: str, *, limit: int = MAX_JSON_BYTES) -> JsonValue:
    """Read a JSON file of the folder.

    Raises:
        InvalidFolderError: it is missing, leads out of the folder, or is no JSON.
    """
    try:
        return json.loads(read_bytes(folder, name, limit=limit))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(folder.name, name, f"is no JSON: {error}") from error


@contextmanager
def import_errors(folder: Path) -> Generator[None]:
    """Turn errors of reading a backbone into those of a folder to import.

    Raises:
        InvalidFolderError: a file is not sound.
        UnsupportedImportError: it says what is not computed here.
    """
    try:
        yield
    except CorruptBackboneError as error:
        raise InvalidFolderError(folder.name, str(error)) from error
    except UnsupportedBackboneError as error:
        found, _, advice = str(error).rpartition("; ")
        raise UnsupportedImportError(folder.name, found, advice) from error


def check_base(folder: Path, named: str | None, backbone: Backbone) -> None:
    """Refuse an adapter that does not name the backbone, by the last part of both names.

    Adapters hold no weights of their base, so that its name is all there is to compare.

    Raises:
        ForeignBackboneError: it names another base, or none.
    """
    if named and _last_part(named) == _last_part(backbone.name):
        return
    found = f"it was trained on {named!r}" if named else "it does not name its base model"
    raise ForeignBackboneError(
        folder.name,
        backbone.name,
        f"{found}, and nothing but the name tells bases of equal shape apart (if this backbone is "
        "the base, say --allow-other-base)",
    )


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _drops_types(backbone: Backbone) -> bool:
    """Whether `tokenizer.json` gives types that the encoder has and is not given."""
    if backbone.config.num_token_types == 1:
        return False
    tokenizer = Tokenizer.from_str(backbone.tokenizer.definition)
    tokenizer.no_truncation()
    return any(tokenizer.encode("a", "a").type_ids)


def _read_object(folder: Path, name: str) -> dict[str, JsonValue]:
    found = read_json(folder, name)
    if not isinstance(found, dict):
        raise CorruptFileError(folder.name, name, "is no JSON object")
    return found


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
