"""Reading the weights of a whole model: one safetensors file, or shards with an index."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from nunatak_artifact.errors import (
    CorruptFileError,
    InvalidFolderError,
    PickledWeightsError,
    UnsupportedImportError,
)
from nunatak_artifact.interchange.adapter_folder import (
    MAX_WEIGHT_BYTES,
    PICKLE_SUFFIXES,
    has_file,
    read_bytes,
    read_model,
)
from nunatak_model import InvalidTensorsError, tensors_from_bytes
from nunatak_model.checkpoint import WEIGHTS, WEIGHTS_INDEX

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
PICKLE_ADVICE: Final = (
    "if you trust it, load it once with transformers and save it with save_pretrained, which "
    "writes safetensors"
)


class _Index(BaseModel):
    model_config = ConfigDict(frozen=True)

    weight_map: dict[str, str]


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Read every floating-point tensor, in the format it is stored in.

    Raises:
        InvalidFolderError: a file is missing, leads out of the folder, or is not sound.
        UnsupportedImportError: the weights are pickled, or numbers of another format.
    """
    tensors = dict[str, Tensor]()
    for name in _weight_files(folder):
        data = read_bytes(folder, name, limit=MAX_WEIGHT_BYTES)
        try:
            tensors |= tensors_from_bytes(data)
        except InvalidTensorsError as error:
            raise CorruptFileError(folder.name, name, f"is no safetensors: {error}") from error
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
    if has_file(folder, WEIGHTS):
        return [WEIGHTS]
    if has_file(folder, WEIGHTS_INDEX):
        return sorted(set(read_model(folder, WEIGHTS_INDEX, _Index).weight_map.values()))
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise PickledWeightsError(folder.name, pickles[0], PICKLE_ADVICE)
    raise InvalidFolderError(folder.name, f"it has no file {WEIGHTS}")
