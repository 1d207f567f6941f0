import contextlib
import json
from typing import cast

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.drafts import safetensors_bytes, with_header
from doubles.hostile_files import HOSTILE_FILES, document, entry
from nunatak_registry.blobs.tensors import TensorEntry, read_header
from nunatak_registry.errors import InvalidArtifactError

GOOD = safetensors_bytes({"a": ((2, 1), [1.0, 2.0]), "b": ((), [3.0])})


def test_header_gives_every_tensor_in_the_order_of_its_bytes() -> None:
    assert list(read_header(GOOD).items()) == [
        ("a", TensorEntry(dtype="F32", shape=[2, 1], data_offsets=[0, 8])),
        ("b", TensorEntry(dtype="F32", shape=[], data_offsets=[8, 12])),
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


def test_large_encoder_of_24_layers_fits() -> None:
    name = "encoder.layer.{}.attention.output.dense.weight_{}"
    fields = {name.format(*divmod(it, 16)): entry(4 * it, 4 * it + 4) for it in range(24 * 16)}

    assert len(read_header(document(fields, 4 * len(fields)))) == 24 * 16


@pytest.mark.parametrize("data", HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_bad_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArtifactError):
        read_header(data)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("header-over-the-cap", "at most 262144 bytes"),
        ("too-many-tensors", "at most 4096 items"),
        ("rank-5", "'a.shape': .* at most 4 items"),
        ("integer-dtype", "'F32', 'F16', 'BF16' or 'I8'"),
        ("long-name", "at most 256 characters"),
        ("hole-between", "'b'.* must lie at bytes \\[4, 8\\]"),
    ],
)
def test_an_error_names_the_rule_that_a_file_breaks(name: str, reason: str) -> None:
    with pytest.raises(InvalidArtifactError, match=reason):
        read_header(HOSTILE_FILES[name])


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
    assert {name: found["shape"] for name, found in theirs} == {
        name: found.shape for name, found in ours.items()
    }


@given(st.binary(max_size=200))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_any_bytes_for_a_header_give_an_answer_or_our_error(noise: bytes) -> None:
    for data in (noise, with_header(noise), with_header(b"{" + noise + b"}")):
        with contextlib.suppress(InvalidArtifactError):
            read_header(data)
