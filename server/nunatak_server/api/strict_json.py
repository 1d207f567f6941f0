"""Strict JSON: what every parser reads in the same way, and nothing else."""

import json
from typing import cast

import orjson

from nunatak_server.errors import InvalidJsonError


def parse_json(body: bytes) -> object:
    """Parse strict JSON: UTF-8, no NaN, no lone surrogates, no field twice, bounded depth.

    A field that is named twice means one thing to a proxy that checks bodies and another to us.

    Raises:
        InvalidJsonError: it is something else.
    """
    try:
        parsed = orjson.loads(body)
        # The fast parser takes the last of equal names. Every field has a colon, so where there
        # are no more colons than fields, none was dropped; else another parser looks for them.
        # Numbers stay text there, which may have more digits than Python converts.
        if body.count(b":") > _num_fields(parsed):
            json.loads(body, object_pairs_hook=_refuse_doubles, parse_int=str, parse_float=str)
    except (orjson.JSONDecodeError, RecursionError):
        # The decoder's own message is left out, because it quotes the body.
        raise InvalidJsonError from None
    return parsed


def _num_fields(parsed: object) -> int:
    match parsed:
        case dict():
            fields = cast("dict[str, object]", parsed)
            return len(fields) + sum(map(_num_fields, filter(_is_container, fields.values())))
        case list():
            return sum(map(_num_fields, filter(_is_container, cast("list[object]", parsed))))
        case _:
            return 0


def _is_container(value: object) -> bool:
    return type(value) in {dict, list}


def _refuse_doubles(fields: list[tuple[str, object]]) -> None:
    if len({name for name, _ in fields}) < len(fields):
        raise InvalidJsonError
