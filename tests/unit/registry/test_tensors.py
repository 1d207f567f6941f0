# safetensors ships no types for `deserialize`: its result is cast where it enters.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import contextlib
import json
import struct
from typing import cast

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.drafts import safetensors_bytes, with_header
from nunatak_registry.errors import InvalidArtifactError
from nunatak_registry.tensors import MAX_HEADER_BYTES, MAX_TENSORS, TensorEntry, read_header


def entry(begin: object, end: object, shape: object = (1,), dtype: object = "F32") -> object:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def document(fields: object, size: int = 4) -> bytes:
    return with_header(json.dumps(fields).encode(), bytes(size))


def large_document(num_layers: int, tensors_of_layer: tuple[str, ...]) -> bytes:
    shape, position = [1024, 1], 0
    fields: dict[str, object] = {}
    for layer in range(num_layers):
        for name in tensors_of_layer:
            fields[f"encoder.layer.{layer}.{name}"] = entry(position, position + 4096, shape)
            position += 4096
    return document(fields, position)


GOOD = safetensors_bytes({"a": ((2, 1), [1.0, 2.0]), "b": ((), [3.0])})

NAMES_OF_FULL_LAYER = tuple(
    f"{block}.{part}.{kind}"
    for block in ("attention.self", "attention.output", "intermediate", "output")
    for part in ("query", "dense")
    for kind in ("weight", "bias")
)
NAMES_OF_LORA_LAYER = tuple(
    f"attention.self.{part}.lora_{side}.weight" for part in "qkvoud" for side in "AB"
)

BAD = {
    "empty": b"",
    "short-prefix": b"\x02\x00",
    "prefix-only": struct.pack("<Q", 0),
    "length-beyond-file": struct.pack("<Q", 100) + b"{}",
    "length-2-to-the-40": struct.pack("<Q", 2**40) + b"{}",
    "length-all-ones": b"\xff" * 8 + b"{}",
    "header-over-the-cap": with_header(b"{" + b" " * MAX_HEADER_BYTES + b"}"),
    "pickle": b"\x80\x04\x95" + bytes(64),
    "zip": b"PK\x03\x04" + bytes(64),
    "not-json": with_header(b"{nope}"),
    "not-utf8": with_header(b'{"\xff": 1}'),
    "utf16": with_header("{}".encode("utf-16")),
    "byte-order-mark": with_header(b"\xef\xbb\xbf{}"),
    "leading-space": with_header(b" " + json.dumps({"a": entry(0, 4)}).encode(), bytes(4)),
    "deep-json": with_header(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "deep-list": with_header(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "long-number": with_header(b'{"a": ' + b"9" * 10_000 + b"}"),
    "list": with_header(b"[]"),
    "null": with_header(b"null"),
    "no-tensors": document({}, 0),
    "only-metadata": document({"__metadata__": {}}, 0),
    "metadata-of-numbers": document({"__metadata__": {"a": 1}, "a": entry(0, 4)}),
    "metadata-list": document({"__metadata__": [], "a": entry(0, 4)}),
    "duplicate-tensor": with_header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "duplicate-key-inside": with_header(
        b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    ),
    "too-many-tensors": document(
        {str(i): entry(4 * i, 4 * i + 4) for i in range(MAX_TENSORS + 1)}, 4 * MAX_TENSORS + 4
    ),
    "entry-is-null": document({"a": None}),
    "entry-is-list": document({"a": [1]}),
    "unknown-field": document(
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": 1}}
    ),
    "missing-shape": document({"a": {"dtype": "F32", "data_offsets": [0, 4]}}),
    "missing-offsets": document({"a": {"dtype": "F32", "shape": [1]}}),
    "unknown-dtype": document({"a": entry(0, 4, dtype="F33")}),
    "integer-dtype": document({"a": entry(0, 8, dtype="I64")}, 8),
    "dtype-is-number": document({"a": entry(0, 4, dtype=32)}),
    "rank-5": document({"a": entry(0, 4, shape=[1, 1, 1, 1, 1])}),
    "zero-size": document({"a": entry(0, 0, shape=[0]), "b": entry(0, 4)}),
    "negative-dimension": document({"a": entry(0, 4, shape=[-1])}),
    "float-dimension": document({"a": entry(0, 4, shape=[1.0])}),
    "boolean-dimension": document({"a": entry(0, 4, shape=[True])}),
    "text-dimension": document({"a": entry(0, 4, shape=["1"])}),
    "overflowing-shape": document({"a": entry(0, 4, shape=[2**33, 2**33])}),
    "huge-shape": document({"a": entry(0, 2**62, shape=[2**60])}),
    "nan-dimension": with_header(
        b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', bytes(4)
    ),
    "negative-offset": document({"a": entry(-4, 0)}),
    "float-offset": document({"a": entry(0.0, 4.0)}),
    "three-offsets": document({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}),
    "reversed-offsets": document({"a": entry(4, 0)}),
    "size-too-small": document({"a": entry(0, 4, shape=[2])}),
    "size-too-large": document({"a": entry(0, 8)}, 8),
    "half-width-mismatch": document({"a": entry(0, 4, dtype="BF16")}),
    "hole-at-start": document({"a": entry(4, 8)}, 8),
    "hole-between": document({"a": entry(0, 4), "b": entry(8, 12)}, 12),
    "overlap": document({"a": entry(0, 4), "b": entry(0, 4)}),
    "partial-overlap": document({"a": entry(0, 4), "b": entry(2, 6)}, 6),
    "trailing-byte": document({"a": entry(0, 4)}, 5),
    "truncated-body": document({"a": entry(0, 4)}, 3),
    "empty-name": document({"": entry(0, 4)}),
    "nul-in-name": document({"a\x00/../x": entry(0, 4)}),
    "newline-in-name": document({"a\n": entry(0, 4)}),
    "unicode-name": document({"\u0430": entry(0, 4)}),
    "long-name": document({"a" * 257: entry(0, 4)}),
    "lone-surrogate-name": with_header(
        b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    ),
}


def test_header_gives_every_tensor_in_the_order_of_its_bytes() -> None:
    assert list(read_header(GOOD).items()) == [
        ("a", TensorEntry(dtype="F32", shape=(2, 1), begin=0, end=8)),
        ("b", TensorEntry(dtype="F32", shape=(), begin=8, end=12)),
    ]


def test_order_in_the_header_does_not_matter() -> None:
    data = document({"b": entry(4, 8), "a": entry(0, 4)}, 8)

    assert list(read_header(data)) == ["a", "b"]


def test_metadata_of_texts_and_trailing_spaces_are_passed_over() -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": entry(0, 4)}).encode() + b"   "

    assert list(read_header(with_header(header, bytes(4)))) == ["a"]


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_width_formats_take_two_bytes(dtype: str) -> None:
    assert read_header(document({"a": entry(0, 4, [2], dtype)}))["a"].dtype == dtype


@pytest.mark.parametrize("names", [NAMES_OF_FULL_LAYER, NAMES_OF_LORA_LAYER])
def test_large_encoder_of_24_layers_fits(names: tuple[str, ...]) -> None:
    assert len(read_header(large_document(24, names))) == 24 * len(names)


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArtifactError):
        read_header(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
@settings(max_examples=500, derandomize=True, deadline=None)
def test_what_we_accept_the_format_accepts(position: int, value: int, length: int) -> None:
    mutated = bytearray(GOOD)
    mutated[position] = value
    data = bytes(mutated[:length]) if length % 3 == 0 else bytes(mutated)

    try:
        ours = read_header(data)
    except InvalidArtifactError:
        return

    theirs = cast("list[tuple[str, dict[str, object]]]", safetensors.deserialize(data))
    assert {name: tuple(cast("list[int]", found["shape"])) for name, found in theirs} == {
        name: found.shape for name, found in ours.items()
    }


@given(st.binary(max_size=200))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_any_bytes_for_a_header_give_an_answer_or_our_error(noise: bytes) -> None:
    for data in (noise, with_header(noise), with_header(b"{" + noise + b"}")):
        with contextlib.suppress(InvalidArtifactError):
            read_header(data)
