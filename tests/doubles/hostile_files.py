"""Files that claim to be safetensors and break the format or our limits, one rule each."""

import json
import struct
from collections.abc import Mapping

from doubles.drafts import with_header
from nunatak_registry.blobs.tensors import MAX_HEADER_BYTES, MAX_TENSORS


def entry(begin: object, end: object, shape: object = (1,), dtype: object = "F32") -> object:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def document(fields: object, size: int = 4) -> bytes:
    return with_header(json.dumps(fields).encode(), bytes(size))


HOSTILE_FILES: Mapping[str, bytes] = {
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
    "too-many-tensors": with_header(
        # Without spaces, because the header must be small enough.
        json.dumps(
            {f"{i:x}": entry(2 * i, 2 * i + 2, (), "F16") for i in range(MAX_TENSORS + 1)},
            separators=(",", ":"),
        ).encode(),
        bytes(2 * MAX_TENSORS + 2),
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


HOSTILE_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "billion-layers": {"num_hidden_layers": 10**9},
    "no-layers": {"num_hidden_layers": 0},
    "negative-layers": {"num_hidden_layers": -1},
    "layers-are-text": {"num_hidden_layers": "4"},
    "half-a-layer": {"num_hidden_layers": 3.5},
    "true-layers": {"num_hidden_layers": True},
    "layers-are-null": {"num_hidden_layers": None},
    "billion-labels": {"num_labels": 10**9},
    "endless-labels": {"num_labels": 1e300},
    "billion-heads": {"num_attention_heads": 10**9},
    "no-heads": {"num_attention_heads": 0},
    "huge-width": {"hidden_size": 2**40},
    "negative-width": {"hidden_size": -32},
    "huge-vocabulary": {"vocab_size": 2**40},
    "vocabulary-beyond-the-weights": {"vocab_size": 2**24},
    "huge-inner-width": {"intermediate_size": 2**22},
    "huge-positions": {"max_position_embeddings": 2**29},
    "positions-are-a-list": {"max_position_embeddings": [512]},
    "epsilon-is-text": {"layer_norm_eps": "small"},
    "epsilon-is-huge": {"layer_norm_eps": 1e30},
    "padding-is-a-list": {"pad_token_id": [0]},
    "model-type-is-a-list": {"model_type": ["bert"]},
    "activation-is-a-list": {"hidden_act": ["gelu"]},
    "pruned-heads-are-a-number": {"pruned_heads": 3},
}
"""Changes of a BERT's `config.json` that no model could have."""


def _split(pattern: str) -> object:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _replace(pattern: str, content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


HOSTILE_TOKENIZERS: Mapping[str, Mapping[str, object]] = {
    "nested-repetition": {"pre_tokenizer": _split("(a+)+$")},
    "nested-repetition-of-z": {"pre_tokenizer": _split("(z+z+)+y")},
    "many-wildcards": {"pre_tokenizer": _split("(.*a){25}")},
    "alternatives": {"pre_tokenizer": _split("(x|xx|y)*q")},
    "broken-pattern": {"pre_tokenizer": _split("(a")},
    "replaced-by-a-megabyte": {"normalizer": _replace("a", "b" * 2**20)},
    "two-megabytes-in-front": {"normalizer": {"type": "Prepend", "prepend": "b" * 2**21}},
    "doubled-40-times": {
        "normalizer": {"type": "Sequence", "normalizers": [_replace("a", "aa")] * 40}
    },
    "billionth-token": {"model.vocab.a": 10**9},
    "negative-token": {"model.vocab.a": -1},
    "token-is-text": {"model.vocab.a": "5"},
    "billionth-added-token": {
        "added_tokens": [
            {
                "id": 10**9,
                "content": "x",
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
                "special": True,
            }
        ]
    },
    "long-words": {"model.max_input_chars_per_word": 10**9},
    "no-model": {"model": None},
    "model-is-a-list": {"model": []},
}
"""Changes of a `tokenizer.json` of WordPiece that would cost far too much, or that do not read."""
