"""Reading adapter folders that other programs wrote: each file once, bounded, and suspicious."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from nunatak_artifact.errors import (
    CorruptFileError,
    EscapingFileError,
    InvalidFolderError,
    PickledWeightsError,
    TensorMismatchError,
)
from nunatak_model import tensors_from_bytes
from nunatak_registry import InvalidArtifactError
from nunatak_registry.blobs.tensors import read_header

MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_WEIGHT_BYTES = 4 * 1024**3
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

Shapes = Mapping[str, tuple[int, ...]]
Model = TypeVar("Model", bound=BaseModel)


def has_file(folder: Path, name: str) -> bool:
    """Whether the folder has an entry of this name, of whatever kind."""
    return (folder / name).is_symlink() or (folder / name).exists()


def read_bytes(folder: Path, name: str, *, limit: int = MAX_JSON_BYTES) -> bytes:
    """Read a regular file of the folder.

    Raises:
        InvalidFolderError: there is no such file.
        EscapingFileError: it is a link out of the folder.
        CorruptFileError: it is no regular file, or longer than `limit` bytes.
    """
    path = folder / name
    if not has_file(folder, name):
        raise InvalidFolderError(folder.name, f"it has no file {name}")
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()):
        raise EscapingFileError(folder.name, name)
    # A pipe would be waited for without end.
    if not target.is_file():
        raise CorruptFileError(folder.name, name, "must be a regular file")
    size = target.stat().st_size
    if size > limit:
        raise CorruptFileError(folder.name, name, f"has {size} bytes, at most {limit} are read")
    return target.read_bytes()


def read_model(folder: Path, name: str, model: type[Model]) -> Model:
    """Read a JSON file of the folder as `model`.

    Raises:
        InvalidFolderError: as `read_bytes`; a file that does not fit the model is corrupt.
    """
    data = read_bytes(folder, name)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise CorruptFileError(folder.name, name, f"does not read: {where}: {first['msg']}") from (
            error
        )


def read_weights(folder: Path, stem: str, *, advice: str) -> dict[str, Tensor]:
    """Read `stem`.safetensors as float32 tensors that own their memory.

    The limits are those of what the registry stores. `advice` says how to get such a file where
    there is only a pickle.

    Raises:
        PickledWeightsError: there are only pickled weights.
        InvalidFolderError: as `read_bytes`; a file that is no safetensors is corrupt.
    """
    name = f"{stem}.safetensors"
    if not has_file(folder, name):
        for suffix in PICKLE_SUFFIXES:
            if has_file(folder, f"{stem}{suffix}"):
                raise PickledWeightsError(folder.name, f"{stem}{suffix}", advice)
    data = read_bytes(folder, name, limit=MAX_WEIGHT_BYTES)
    try:
        read_header(data)
    except InvalidArtifactError as error:
        raise CorruptFileError(folder.name, name, f"is no sound safetensors: {error}") from error
    return {key: tensor.to(torch.float32) for key, tensor in tensors_from_bytes(data).items()}


def check_tensors(folder: Path, tensors: Mapping[str, Tensor], expected: Shapes) -> None:
    """Refuse tensors that are not exactly `expected`.

    Raises:
        TensorMismatchError: they are not.
    """
    wrong = [
        f"{name} is {list(tensor.shape)}, expected {list(expected[name])}"
        for name, tensor in tensors.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    ]
    missing, unused = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or unused or wrong:
        raise TensorMismatchError(folder.name, missing=missing, unused=unused, wrong=wrong)
