"""Parts that all importers share: choices, results, and checks of a folder against the backbone.

An importer takes `ImportChoices` and returns an `ImportedTask`. The checks compare the shape of the
model, its tokenizer and its reading settings with the backbone at hand. `write_model` writes a
model folder in the layout of transformers.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue
from safetensors.torch import (
    save_file,  # pyright: ignore[reportUnknownVariableType] - its paths are typed partly
)
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_artifact.errors import (
    CorruptFileError,
    ForeignBackboneError,
    InvalidFolderError,
    UnsupportedImportError,
)
from nunatak_artifact.interchange.folders import MAX_JSON_BYTES, has_file, read_bytes
from nunatak_artifact.interchange.transformers_layout import FAMILIES
from nunatak_contract.enums import ProblemType, RankingScore
from nunatak_model import (
    INT8_SUFFIX,
    Backbone,
    BackboneConfig,
    BranchSpec,
    CorruptBackboneError,
    UnsupportedBackboneError,
)
from nunatak_model.architectures import config_from
from nunatak_model.checkpoint import WEIGHTS
from nunatak_model.tokenizer_settings import (
    TOKENIZER_CONFIG,
    check_settings,
    gives_token_types,
)

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZING_PARTS: Final = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
"""Parts that decide token ids. Saved truncation and padding do not: each task has its length."""
MAX_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
"""That of XLM-R, the largest of the family, has 17 MB."""
MASKS: Final = ("[MASK]", "<mask>")


class LogitUse(StrEnum):
    """The meaning of the one logit of a model."""

    CLASSIFICATION = "classification"
    RANKING = "ranking"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportChoices:
    """Choices of the caller. Where a field is None, the folder decides."""

    labels: tuple[str, ...] | None = None
    """In the order of the logits."""
    problem_type: ProblemType | None = None
    """Only for sequence classification: a model with a problem type is no ranking."""
    logit_use: LogitUse | None = None
    allows_other_base: bool = False
    """Whether to accept an adapter that names another base than the backbone, or none."""


AS_THE_FOLDER_SAYS: Final = ImportChoices()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTask:
    """The content of a foreign folder as a method, a head and parameters.

    Everything `draft_task` needs but name, probe inputs and provenance.
    """

    spec: BranchSpec
    labels: tuple[str, ...]
    problem_type: ProblemType | None
    parameters: Mapping[str, Tensor]
    """In float32."""
    max_length: int | None
    """In tokens; None: the folder does not say."""
    source: str
    """Findings of the import, for people."""
    score: RankingScore = RankingScore.SIGMOID
    """Only for a ranking: the function that makes a score of the logit."""
    base: str | None = None
    """Only for an adapter: the base model that the folder names."""


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
    """Refuse settings that make transformers read texts differently from the backbone here.

    For files that the folder lacks, the backbone's files count.

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
    """Turn the errors of reading a backbone into errors of a folder to import.

    Raises:
        InvalidFolderError: a file is damaged.
        UnsupportedImportError: a file asks for a feature that the backbone here lacks.
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
