"""Requests: strict JSON, which every parser reads in the same way, and parameters as options."""

import json
from typing import cast

import orjson

from nunatak_contract.errors import NunatakError
from nunatak_contract.requests import Parameters
from nunatak_server.outputs.answers import AnswerOptions
from nunatak_server.outputs.entities import EntityOptions
from nunatak_server.outputs.outputs import PredictionOptions
from nunatak_server.outputs.scores import RankingOptions, ScoreOptions


def parse_json(body: bytes) -> object:
    """Parse strict JSON: UTF-8, no NaN, no lone surrogates, no field twice, bounded depth.

    A proxy that checks bodies might read a repeated field differently.

    Raises:
        NunatakError: `invalid_json`, the bytes are not strict JSON.
    """
    try:
        parsed = orjson.loads(body)
        # The fast parser keeps the last of equal names. Every field has a colon, so with no more
        # colons than fields, no field was dropped. Otherwise another parser checks the names. That
        # parser keeps numbers as text, because a number may have more digits than Python converts.
        if body.count(b":") > _num_fields(parsed):
            json.loads(body, object_pairs_hook=_refuse_doubles, parse_int=str, parse_float=str)
    except (orjson.JSONDecodeError, RecursionError):
        # The decoder's own message is left out, because it quotes the body.
        raise NunatakError("invalid_json") from None
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
        raise NunatakError("invalid_json")


def options_of(parameters: Parameters) -> PredictionOptions:
    """Return parameters as options of the service."""
    return PredictionOptions(
        scores=ScoreOptions(function=parameters.function_to_apply, top_k=parameters.top_k),
        entities=EntityOptions(
            aggregation=parameters.aggregation_strategy,
            ignored_labels=frozenset(parameters.ignore_labels),
            stride=parameters.stride,
        ),
        answers=AnswerOptions(
            top_k=parameters.top_k or 1,
            max_answer_tokens=parameters.max_answer_len,
            may_have_no_answer=parameters.handle_impossible_answer,
            align_to_words=parameters.align_to_words,
            stride=parameters.doc_stride,
        ),
        ranking=RankingOptions(
            function=parameters.function_to_apply,
            top_k=parameters.top_k,
            return_documents=parameters.return_documents,
        ),
        on_long=parameters.on_long,
    )
