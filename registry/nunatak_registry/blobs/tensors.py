"""The header of a safetensors blob: the tensors, and the places of their bytes.

Layout: 8 bytes little-endian header length, a JSON header, then the tensors' bytes without gaps.
Blobs come from publishers and may be hostile, so the rules here are narrower than the format's.
Headers are small, tensors are few, of floats or of 8-bit integers, and every byte after the header
belongs to one tensor.

The safetensors library does not keep these rules. `safetensors.deserialize` reads bytes in memory
without a framework. But this function copies every tensor (a blob of 1 GB takes 2 GB), keeps the
last of two equal keys, and ignores unknown fields.
"""

import json
import math
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from nunatak_contract.record import problems_of
from nunatak_registry.errors import InvalidArtifactError

# A full copy of a 24-layer encoder has about 400 tensors and 50 KiB of header.
MAX_HEADER_BYTES = 256 * 1024
MAX_TENSORS = 4096
MAX_RANK = 4
MAX_NAME_LENGTH = 256
NUM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1}

_PREFIX_BYTES = 8
_METADATA = "__metadata__"


class TensorEntry(BaseModel, strict=True, extra="forbid", frozen=True):
    """One tensor: its format and its byte range, counted from the end of the header."""

    dtype: Literal["F32", "F16", "BF16", "I8"]
    shape: Annotated[list[PositiveInt], Field(max_length=MAX_RANK)]
    data_offsets: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * NUM_BYTES[self.dtype]


_NAME = Field(min_length=1, max_length=MAX_NAME_LENGTH, pattern=r"^[ -~]+$")
_METADATA_FIELDS = TypeAdapter(dict[str, str], config=ConfigDict(strict=True))
_TENSORS = TypeAdapter(
    Annotated[dict[Annotated[str, _NAME], TensorEntry], Field(min_length=1, max_length=MAX_TENSORS)]
)


def read_header(data: bytes) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name, in the order of their bytes, unread."""
    header = _header_bytes(data)
    fields = _parse_json(header)
    try:
        _METADATA_FIELDS.validate_python(fields.pop(_METADATA, {}))
        tensors = _TENSORS.validate_python(fields)
    except ValidationError as error:
        field, problem = problems_of(error)[0]
        where = f"header field {field[:80]!r}" if field else "header"
        raise InvalidArtifactError(f"{where}: {problem}") from error
    ordered = sorted(tensors.items(), key=lambda named: named[1].data_offsets)
    _check_tiling(ordered, len(data) - _PREFIX_BYTES - len(header))
    return dict(ordered)


def _header_bytes(data: bytes) -> bytes:
    if len(data) < _PREFIX_BYTES:
        raise InvalidArtifactError(f"a safetensors file has at least 8 bytes, got {len(data)}")
    size = int.from_bytes(data[:_PREFIX_BYTES], "little")
    if size > MAX_HEADER_BYTES:
        raise InvalidArtifactError(
            f"the header must be at most {MAX_HEADER_BYTES} bytes, its length field says {size}"
        )
    header = data[_PREFIX_BYTES : _PREFIX_BYTES + size]
    if len(header) < size:
        raise InvalidArtifactError(f"the header must have {size} bytes, got {len(header)}")
    return header


def _parse_json(header: bytes) -> dict[str, object]:
    # The first byte is checked because the format forbids white space, or a byte order mark, there.
    if not header.startswith(b"{"):
        raise InvalidArtifactError("the header must be a JSON object, it does not start with '{'")
    try:
        return json.loads(header.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidArtifactError(f"the header is not UTF-8 JSON: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidArtifactError("the header names a key twice; every key must be unique")
    return fields


def _check_tiling(tensors: list[tuple[str, TensorEntry]], num_bytes: int) -> None:
    position = 0
    for name, entry in tensors:
        end = position + entry.num_bytes
        if entry.data_offsets != [position, end]:
            raise InvalidArtifactError(
                f"tensor {name[:80]!r}, {entry.dtype} of shape {entry.shape}, must lie at bytes "
                f"{[position, end]}, its offsets say {entry.data_offsets}"
            )
        position = end
    if position != num_bytes:
        raise InvalidArtifactError(
            f"the tensors must cover {num_bytes} bytes after the header, they cover {position}"
        )
