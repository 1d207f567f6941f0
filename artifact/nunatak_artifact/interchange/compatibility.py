"""Parts that all importers share: choices, results, and checks of a folder against the backbone.

An importer reads `ImportChoices` and returns an `ImportedTask`. The checks compare the shape of the
model, its tokenizer and its reading settings with the backbone. `write_model` writes a model folder
in the layout of transformers.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue
from safetensors.torch import (
    save_file,  # pyright: ignore[reportUnknownVariableType] - its paths have partial types
)
from tokenizers import Tokenizer
from torch import Tensor

from nunatak_artifact.interchange.folders import MAX_JSON_BYTES, has_file, read_bytes, write_json
from nunatak_artifact.interchange.transformers_layout import FAMILIES
from nunatak_artifact.reference import corrupt_file, refusal
from nunatak_contract.enums import LogitUse, OnLong, ProblemType, RankingScore, Reads
from nunatak_contract.errors import NunatakError
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
from nunatak_model.text.bounds import check_bounds, is_panic
from nunatak_model.tokenizer_settings import (
    SAVE_ADVICE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_settings,
    definition_of,
    gives_token_types,
)

CONFIG: Final = "config.json"
TOKENIZING_PARTS: Final = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
"""Parts that decide token ids. Saved truncation and padding do not: each task has its length."""
OWN_BACKBONE: Final = "import and serve it with its own folder as the backbone (--backbone)"
MAX_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
"""XLM-R has the largest file of the family, 17 MB."""
MASKS: Final = ("[MASK]", "<mask>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportChoices:
    """Choices of the caller. Where a field is None, the folder decides."""

    labels: tuple[str, ...] | None = None
    """The labels in the order of the logits."""
    problem_type: ProblemType | None = None
    """Only for sequence classification: a model with a problem type is no ranking."""
    logit_use: LogitUse | None = None
    default_label: str | None = None
    """The label that means that nothing was found; None: the first of two labels."""
    thresholds: Mapping[str, float] | None = None
    """The score from which a label of a multi-label task applies, by label; None: 0.5."""
    reads: Reads | None = None
    """None: a single text and a pair."""
    on_long: OnLong | None = None
    allows_other_base: bool = False
    """Whether to accept an adapter that names another base than the backbone, or none."""


AS_THE_FOLDER_SAYS: Final = ImportChoices()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTask:
    """The content of a foreign folder as a method, a head and parameters.

    Everything `draft_task` needs, except name, probe inputs and provenance.
    """

    spec: BranchSpec
    labels: tuple[str, ...]
    problem_type: ProblemType | None
    parameters: Mapping[str, Tensor]
    """In float32."""
    max_length: int | None
    """The longest input in tokens; None: the folder gives no length."""
    source: str
    """Findings of the import, for people."""
    score: RankingScore = RankingScore.SIGMOID
    """Only for a ranking: the function that makes a score of the logit."""
    base: str | None = None
    """Only for an adapter: the base model that the folder names."""


def foreign(folder: Path, backbone: Backbone, difference: str) -> NunatakError:
    """An error: the folder belongs to another backbone."""
    return NunatakError(
        "foreign_backbone", folder=folder.name, backbone=backbone.name, difference=difference
    )


def check_exact(backbone: Backbone) -> None:
    """Refuse a quantized backbone: other programs compute other numbers.

    Raises:
        UnsupportedBackboneError: the backbone is quantized.
    """
    if backbone.is_quantized:
        original = backbone.name.removesuffix(INT8_SUFFIX)
        raise UnsupportedBackboneError(
            f"{backbone.name!r} computes in integers and other programs do not, so their answers "
            f"would differ; use {original!r} for import and export"
        )


def check_shape(folder: Path, backbone: Backbone) -> None:
    """Refuse a `config.json` of an encoder with another shape than the backbone.

    Raises:
        NunatakError: `unsupported_import`, another architecture, or embeddings of more or fewer
            tokens.
        NunatakError: `invalid_folder`, there is no sound `config.json`.
        NunatakError: `foreign_backbone`, another shape.
        UnsupportedBackboneError: a variant of the family with different computations.
    """
    theirs, ours = read_config(folder), backbone.config
    if replace(theirs, vocab_size=ours.vocab_size) == ours != theirs:
        raise refusal(
            folder,
            f"its embeddings have {theirs.vocab_size} tokens, those of backbone "
            f"{backbone.name!r} have {ours.vocab_size} (tokens were added, or the embeddings were "
            "resized)",
            OWN_BACKBONE,
        )
    differences = [
        f"its {name} is {getattr(theirs, name)}, the backbone's is {getattr(ours, name)}"
        for name in _names_of_both(theirs, ours)
        if getattr(theirs, name) != getattr(ours, name)
    ]
    if differences:
        raise foreign(folder, backbone, "; ".join(differences))


def read_config(folder: Path) -> BackboneConfig:
    """Read the shape of the encoder in `config.json`.

    Raises:
        NunatakError: `unsupported_import`, another architecture.
        NunatakError: `invalid_folder`, there is no sound `config.json`.
        UnsupportedBackboneError: a variant of the family whose layers are computed differently.
    """
    raw = read_object(folder, CONFIG)
    if str(raw.get("model_type")) not in FAMILIES:
        raise refusal(
            folder,
            f"its model_type is {raw.get('model_type')!r}",
            f"checkpoints are read of {', '.join(FAMILIES)}",
        )
    try:
        return config_from(raw)
    except CorruptBackboneError as error:
        problem = str(error).removeprefix(f"{CONFIG} ")
        raise corrupt_file(folder, CONFIG, problem) from error


def _names_of_both(theirs: BackboneConfig, ours: BackboneConfig) -> list[str]:
    """Return the fields of both shapes that describe the encoder, and not the head."""
    both = fields(ours) if type(theirs) is type(ours) else fields(BackboneConfig)
    of_head = {"dense_block", *(["padding_id"] if ours.is_causal else [])}
    return [field.name for field in both if field.compare and field.name not in of_head]


def check_tokenizer(folder: Path, backbone: Backbone) -> None:
    """Refuse a folder whose tokenizer may give other token ids or types than the backbone's.

    Raises:
        NunatakError: `invalid_folder`, there is no sound `tokenizer.json`.
        NunatakError: `foreign_backbone`, it differs in what decides token ids or types.
        NunatakError: `unsupported_import`, it differs in one setting, or as `check_reading`.
    """
    with import_errors(folder):
        data = definition_of(
            partial(read_if_any, folder), read_object(folder, CONFIG), read_settings(folder)
        )
    if data is None:
        raise NunatakError(
            "invalid_folder", folder=folder.name, reason=f"it has no {TOKENIZER}; {SAVE_ADVICE}"
        )
    try:
        definition = data.decode()
        with import_errors(folder):
            check_bounds(json.loads(definition))
        theirs = _normalised(definition)
    except NunatakError:
        raise
    except BaseException as error:  # the library has no type of its own, and it may panic
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise corrupt_file(folder, TOKENIZER, f"is no tokenizer: {error}") from error
    ours = _normalised(backbone.tokenizer.definition)
    differing = [part for part in TOKENIZING_PARTS if ours.get(part) != theirs.get(part)]
    if differing and _without_spaces(ours) == _without_spaces(theirs):
        raise refusal(
            folder,
            "its tokenizer and the backbone's differ in add_prefix_space, the space before a "
            "text's first word",
            f"{OWN_BACKBONE}, or with a copy of the backbone's folder that has the "
            f"tokenizer files of {folder.name}, on which other tasks trained with that tokenizer "
            "share layers",
        )
    if differing:
        names = ", ".join("vocabulary" if part == "model" else part for part in differing)
        raise foreign(folder, backbone, f"its tokenizer differs in: {names}")
    check_reading(folder, backbone)


def check_reading(folder: Path, backbone: Backbone) -> None:
    """Refuse settings that make transformers read texts differently from the backbone here.

    For files that the folder lacks, the backbone's files count.

    Raises:
        NunatakError: `invalid_folder`, a file is not sound.
        NunatakError: `foreign_backbone`, only one of folder and backbone gives token types.
        NunatakError: `unsupported_import`, transformers cuts or normalises texts in a way that is
            not available here.
    """
    settings = read_settings(folder)
    config = read_object(folder, CONFIG) if has_file(folder, CONFIG) else {}
    config = {"model_type": backbone.config.model_type, **config}
    ours = backbone.tokenizer.tells_texts_apart
    with import_errors(folder):
        check_settings(config, settings, read_definition(folder, backbone))
        if not ours and not _drops_types(backbone):
            return
        theirs = gives_token_types(config, settings)
    if ours != theirs:
        gives = {True: "gives token types", False: "gives none"}
        raise foreign(
            folder,
            backbone,
            f"its tokenizer {gives[theirs]} to the texts of a pair, the backbone's {gives[ours]}",
        )


def read_settings(folder: Path) -> dict[str, JsonValue]:
    """Read `tokenizer_config.json`; empty if there is no file."""
    return read_object(folder, TOKENIZER_CONFIG) if has_file(folder, TOKENIZER_CONFIG) else {}


def read_definition(folder: Path, backbone: Backbone) -> Mapping[str, Any]:
    """Read `tokenizer.json`; the backbone's if there is no file."""
    if has_file(folder, TOKENIZER):
        found = read_json(folder, TOKENIZER, limit=MAX_TOKENIZER_BYTES)
        return found if isinstance(found, dict) else {}
    return json.loads(backbone.tokenizer.definition)


def read_json(folder: Path, name: str, *, limit: int = MAX_JSON_BYTES) -> JsonValue:
    """Read a JSON file of the folder.

    Raises:
        NunatakError: `invalid_folder`, the file is missing, leads out of the folder, or is no JSON.
    """
    try:
        data = read_bytes(folder, name, limit=limit)
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise corrupt_file(folder, name, f"is no JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has the number {name}")


@contextmanager
def import_errors(folder: Path) -> Generator[None]:
    """Turn the errors of reading a backbone into errors of a folder to import.

    Raises:
        NunatakError: `invalid_folder`, a file is damaged.
        NunatakError: `unsupported_import`, a file asks for a feature that the backbone here lacks.
    """
    try:
        yield
    except CorruptBackboneError as error:
        raise NunatakError("invalid_folder", folder=folder.name, reason=str(error)) from error
    except UnsupportedBackboneError as error:
        found, _, advice = str(error).partition("; ")
        raise refusal(folder, found, advice or "take a checkpoint without it") from error


def check_base(folder: Path, named: str | None, backbone: Backbone) -> None:
    """Refuse an adapter that does not name the backbone, or the checkpoint that it was added from.

    Adapters hold no weights of their base model, so only the last parts of the names are compared.

    Raises:
        NunatakError: `foreign_backbone`, the adapter names another base, or none.
    """
    ours = {_last_part(backbone.name), _last_part(backbone.source.partition("@")[0])}
    if named and _last_part(named) in ours:
        return
    found = f"it was trained on {named!r}" if named else "it does not name its base model"
    raise foreign(
        folder,
        backbone,
        f"{found}, and only the name distinguishes bases of equal shape (if this "
        "backbone is the base, use --allow-other-base)",
    )


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _drops_types(backbone: Backbone) -> bool:
    """Whether `tokenizer.json` gives token types that the encoder has and does not get."""
    if backbone.config.num_token_types == 1:
        return False
    tokenizer = Tokenizer.from_str(backbone.tokenizer.definition)
    tokenizer.no_truncation()
    return any(tokenizer.encode("a", "a").type_ids)


def read_if_any(folder: Path, name: str) -> bytes | None:
    """Read a file of a tokenizer; None if there is none."""
    if not has_file(folder, name):
        return None
    return read_bytes(folder, name, limit=MAX_TOKENIZER_BYTES)


def read_object(folder: Path, name: str) -> dict[str, JsonValue]:
    """Read a JSON object of the folder.

    Raises:
        NunatakError: as `read_json`; anything but an object is corrupt.
    """
    found = read_json(folder, name)
    if not isinstance(found, dict):
        raise corrupt_file(folder, name, "is no JSON object")
    return found


def _without_spaces(definition: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the parts that decide token ids, without the setting of the first space."""
    parts = {part: definition.get(part) for part in TOKENIZING_PARTS}
    for part in ("pre_tokenizer", "post_processor"):
        found = parts[part]
        if isinstance(found, dict):
            parts[part] = {name: it for name, it in found.items() if name != "add_prefix_space"}
    return parts


def _normalised(definition: str) -> dict[str, JsonValue]:
    # The installed library reads and writes both definitions, so that old spellings become equal.
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
        config: the content of `config.json`.
        weights: tensors by stored name.
        backbone: gives the tokenizer.
        max_length: the tokenizer's limit, in tokens.
    """
    write_json(folder, CONFIG, config)
    (folder / TOKENIZER).write_text(backbone.tokenizer.definition, encoding="utf-8")
    tokenizer = _tokenizer_config(backbone, config.get("pad_token_id"), max_length)
    write_json(folder, TOKENIZER_CONFIG, tokenizer)
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in weights.items()},
        folder / WEIGHTS,
        metadata={"format": "pt"},
    )


def _tokenizer_config(
    backbone: Backbone, padding_id: JsonValue, max_length: int
) -> dict[str, JsonValue]:
    tokenizer = Tokenizer.from_str(backbone.tokenizer.definition)
    inputs: list[JsonValue] = ["input_ids", "attention_mask"]
    if backbone.tokenizer.tells_texts_apart:
        inputs.append("token_type_ids")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        **_special_tokens(tokenizer, backbone, padding_id),
    }


def _special_tokens(
    tokenizer: Tokenizer, backbone: Backbone, padding_id: JsonValue
) -> dict[str, JsonValue]:
    """The special tokens by transformers' names.

    The pipelines of transformers spell an unknown token as the text does, so its name is needed.
    Other tokens are named only if `tokenizer.json` has them, because a name adds a token to the
    vocabulary.
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
        **({"pad_token": tokenizer.id_to_token(padding_id)} if isinstance(padding_id, int) else {}),
        **({} if unknown is None else {"unk_token": tokenizer.id_to_token(unknown)}),
        **{name: token for name, token in names.items() if token in added},
    }
