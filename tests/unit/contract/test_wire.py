"""Laws of the shapes that servers and clients share."""

import json
from dataclasses import fields

import pytest
from pydantic import JsonValue, ValidationError

from nunatak_client import (
    AggregationStrategy,
    FunctionToApply,
    Inputs,
    OnLong,
    Parameters,
    Query,
    Question,
)
from nunatak_client.calls import predict_body, wire_inputs
from nunatak_contract import requests
from nunatak_contract.record import MAX_REPR_CHARS, Result
from nunatak_contract.wire import AliasChange, Problem, Score

CHANGE: dict[str, JsonValue] = {
    "task": "tone",
    "alias": "prod",
    "version": 3,
    "previous_version": None,
}


def test_a_newer_server_may_answer_more_and_a_schema_promises_no_more() -> None:
    assert AliasChange.model_validate(CHANGE | {"novelty": 1}).version == 3
    assert AliasChange.model_json_schema(mode="serialization")["additionalProperties"] is False


@pytest.mark.parametrize("field", CHANGE)
def test_an_answer_without_a_field_is_refused(field: str) -> None:
    partial = {name: value for name, value in CHANGE.items() if name != field}

    with pytest.raises(ValidationError, match=field):
        AliasChange.model_validate(partial)


def test_an_answer_holds_numbers_alone_where_it_holds_numbers() -> None:
    class Measured(Result):
        value: float

    with pytest.raises(ValidationError):
        Measured.model_validate_json('{"value": NaN}')


def test_a_problem_of_a_proxy_is_read_and_a_problem_of_a_server_says_all() -> None:
    assert Problem.model_validate({"code": "overloaded", "status": 429}).detail == ""
    promised = Problem.model_json_schema(mode="serialization")["required"]
    assert set(promised) == {"type", "title", "status", "detail", "code"}


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param("a", id="text"),
        pytest.param(("a", "b"), id="pair"),
        pytest.param(Question(question="q", context="c"), id="question"),
        pytest.param(["a", ("b", "c"), Query(query="q", documents=("d",))], id="mixed"),
    ],
)
def test_what_the_client_sends_is_a_request_of_the_contract(inputs: Inputs) -> None:
    everything = Parameters(
        on_long=OnLong.WINDOWS,
        aggregation_strategy=AggregationStrategy.WORD,
        ignore_labels=("O", "B-MISC"),
        stride=2,
        doc_stride=3,
        max_answer_len=4,
        handle_impossible_answer=True,
        align_to_words=True,
        return_documents=True,
    )
    wire = wire_inputs(inputs)
    body = predict_body(
        wire,
        tasks=["tone"],
        top_k=5,
        function_to_apply=FunctionToApply.SIGMOID,
        parameters=everything,
    )

    read = requests.PredictManyRequest.model_validate(json.loads(body))

    assert read.parameters is not None
    assert read.parameters.model_fields_set == set(requests.Parameters.model_fields)
    assert json.loads(read.model_dump_json(exclude_unset=True)) == json.loads(body)


def test_the_client_offers_every_parameter_of_the_contract() -> None:
    offered = {field.name for field in fields(Parameters)} | {"top_k", "function_to_apply"}

    assert offered == set(requests.Parameters.model_fields)


def test_python_shows_the_beginning_of_a_long_answer() -> None:
    score = Score(label="urgent", score=0.5)
    long = Score(label="x" * 400_000, score=0.5)

    assert repr(score) == "Score(label='urgent', score=0.5)"
    for shown in (repr(long), str(long)):
        assert len(shown) < 1.1 * MAX_REPR_CHARS
        assert shown.endswith("characters)")
