"""The header of a safetensors blob: which tensors it holds, and where their bytes lie.

Layout: 8 bytes little-endian header length, a JSON header, then the tensors' bytes without gaps.
Blobs come from publishers and may be hostile, so the rules here are narrower than the format's:
small headers, few tensors, floats only, and every byte after the header owned by one tensor.
"""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from nunatak_registry.errors import InvalidArtifactError

# A full copy of a 24-layer encoder has about 400 tensors and 50 KiB of header.
MAX_HEADER_BYTES = 256 * 1024
MAX_TENSORS = 4096
MAX_RANK = 4
MAX_NAME_LENGTH = 256

_PREFIX_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: its format and its byte range, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    dtype: Literal["F32", "F16", "BF16"]
    shape: Annotated[list[PositiveInt], Field(max_length=MAX_RANK)]
    data_offsets: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]

    def num_bytes(self) -> int:
        return math.prod(self.shape) * (4 if self.dtype == "F32" else 2)


def read_header(data: bytes) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name, in the order of their bytes.

    The tensors' values are not looked at.

    Raises:
        InvalidArtifactError: not a safetensors file, or one that breaks a rule of this module.
    """
    header = _header_bytes(data)
    fields = _parse_json(header)
    _check_metadata(fields.pop(_METADATA, {}))
    if not 1 <= len(fields) <= MAX_TENSORS:
        raise InvalidArtifactError(
            f"a blob must hold 1 to {MAX_TENSORS} tensors, got {len(fields)}"
        )
    entries = sorted(
        ((name, _read_entry(name, value)) for name, value in fields.items()),
        key=lambda named: named[1].begin,
    )
    _check_tiling(entries, len(data) - _PREFIX_BYTES - len(header))
    return dict(entries)


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


def _check_metadata(value: object) -> None:
    try:
        _Metadata.model_validate({"texts": value})
    except ValidationError as error:
        raise InvalidArtifactError(f"{_METADATA} must map strings to strings") from error


class _Metadata(BaseModel):
    model_config = ConfigDict(strict=True)

    texts: dict[str, str]


def _read_entry(name: str, value: object) -> TensorEntry:
    if not (1 <= len(name) <= MAX_NAME_LENGTH and name.isascii() and name.isprintable()):
        raise InvalidArtifactError(
            f"a tensor name must be 1 to {MAX_NAME_LENGTH} printable ASCII characters, "
            f"got {name[:80]!r}"
        )
    try:
        entry = _Entry.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "entry"
        raise InvalidArtifactError(f"tensor {name[:80]!r}: {where}: {first['msg']}") from error
    begin, end = entry.data_offsets
    if end - begin != entry.num_bytes():
        raise InvalidArtifactError(
            f"tensor {name[:80]!r}: {entry.dtype} of shape {entry.shape} must have "
            f"{entry.num_bytes()} bytes, its offsets [{begin}, {end}] span {end - begin}"
        )
    return TensorEntry(dtype=entry.dtype, shape=tuple(entry.shape), begin=begin, end=end)


def _check_tiling(entries: list[tuple[str, TensorEntry]], num_bytes: int) -> None:
    position = 0
    for name, entry in entries:
        if entry.begin != position:
            kind = "a hole" if entry.begin > position else "an overlap"
            raise InvalidArtifactError(
                f"tensor {name[:80]!r} must begin at byte {position}, got {entry.begin}: {kind}"
            )
        position = entry.end
    if position != num_bytes:
        raise InvalidArtifactError(
            f"the tensors must cover {num_bytes} bytes after the header, they cover {position}"
        )
