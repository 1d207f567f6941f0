"""Reading folders that other programs wrote: JSON and safetensors, never pickles."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import (
    load_file,  # pyright: ignore[reportUnknownVariableType] - its paths are typed partly
)
from torch import Tensor

from nunatak_artifact.errors import InvalidFolderError, UnsupportedImportError

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MAX_JSON_BYTES = 64 * 1024 * 1024
"""The tokenizer of XLM-R, the largest of the family, has 17 MB."""
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class _Index(BaseModel):
    model_config = ConfigDict(frozen=True)

    weight_map: dict[str, str]


def read_object(folder: Path, name: str) -> dict[str, JsonValue]:
    """Read a file of the folder that holds one JSON object.

    Raises:
        InvalidFolderError: it is missing, too large, or no JSON object.
    """
    path = folder / name
    if not path.is_file():
        raise InvalidFolderError(folder.name, f"it has no file {name}")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InvalidFolderError(folder.name, f"{name} is larger than {MAX_JSON_BYTES} bytes")
    try:
        value: JsonValue = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidFolderError(folder.name, f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidFolderError(folder.name, f"{name} must hold one JSON object")
    return value


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read every floating-point tensor of `model.safetensors`, or of its shards, as stored.

    Raises:
        InvalidFolderError: a file is missing or is no sound safetensors file.
        UnsupportedImportError: the weights are pickled, or hold numbers of another format.
    """
    tensors = dict[str, Tensor]()
    for name in _weight_files(folder):
        try:
            tensors |= load_file(folder / name)
        except (SafetensorError, OSError) as error:
            raise InvalidFolderError(folder.name, f"{name} is no safetensors: {error}") from error
    # Old checkpoints carry the numbers of the positions as integers.
    floats = {name: it for name, it in tensors.items() if not name.endswith(".position_ids")}
    for name, tensor in floats.items():
        if tensor.dtype not in FLOATS:
            raise UnsupportedImportError(
                folder.name,
                f"tensor {name!r} is {tensor.dtype}",
                "save the model in float32, float16 or bfloat16",
            )
    return floats


def _weight_files(folder: Path) -> Iterable[str]:
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (folder / WEIGHTS_INDEX).is_file():
        raise _missing_weights(folder)
    try:
        index = _Index.model_validate(read_object(folder, WEIGHTS_INDEX))
    except ValidationError as error:
        raise InvalidFolderError(folder.name, f"{WEIGHTS_INDEX} has no weight_map") from error
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise InvalidFolderError(
                folder.name, f"{WEIGHTS_INDEX} names {name[:80]!r}, which is no file of the folder"
            )
    return names


def _missing_weights(folder: Path) -> InvalidFolderError | UnsupportedImportError:
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not pickles:
        return InvalidFolderError(folder.name, f"it has no file {WEIGHTS}")
    return UnsupportedImportError(
        folder.name,
        f"its weights are pickled ({pickles[0]}), and reading a pickle runs whatever is in it",
        "if you trust it, open it once with transformers and save it with save_pretrained, "
        f"which writes {WEIGHTS}",
    )


def require_folder(folder: Path) -> None:
    """Refuse what is no folder.

    Raises:
        InvalidFolderError: there is none at this path.
    """
    if not folder.is_dir():
        raise InvalidFolderError(str(folder), "there is no such folder")
