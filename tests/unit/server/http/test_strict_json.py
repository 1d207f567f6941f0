import pytest

from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_server.http.requests import parse_json

REFUSED = {
    "nothing": b" ",
    "not-json": b"inputs=hello",
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "overflow": b'{"a": 1e999}',
    "lone-surrogate": b'{"a": "\\ud800"}',
    "not-utf8": b'{"a": "\xff"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "byte-order-mark": b'\xef\xbb\xbf{"a": 1}',
    "too-deep": b"[" * 5000 + b"]" * 5000,
    "trailing-comma": b'{"a": 1,}',
    "two-values": b"{}{}",
    "field-twice": b'{"a": 1, "a": 1}',
    "field-twice-in-a-list": b'[{"b": ":::"}, [{"a": 1, "b": 2, "a": 3}]]',
    "field-twice-by-an-escape": b'{"a": 1, "\\u0061": ":"}',
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_strict_json_is_refused_without_repeating_it(body: bytes) -> None:
    with raises("invalid_json") as refused:
        parse_json(body)

    assert str(refused.value) == str(NunatakError("invalid_json"))


def test_strict_json_is_parsed() -> None:
    assert parse_json('{"a": ["\u00e9", 1.5, null]}'.encode()) == {"a": ["\u00e9", 1.5, None]}


def test_colons_in_texts_are_no_fields() -> None:
    assert parse_json(b'{"a:": [{"b": "c::"}]}') == {"a:": [{"b": "c::"}]}
