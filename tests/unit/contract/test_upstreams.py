"""Laws of the protocols by which an upstream is asked: questions stay the same, answers fit."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nunatak_contract.questions import TypedQuestion
from nunatak_contract.upstreams import PROTOCOLS, UnusableReplyError, read_reply
from nunatak_server.compat.decisions import DecisionQuestion, SystemOneQuestion, fields_of

SYSTEM_ONE, OPENAI = PROTOCOLS["/v1/systemone"], PROTOCOLS["/v1/decisions"]
TEXT = st.text("ab c", min_size=1).filter(str.strip)
JSON_TEXT = TEXT | st.dictionaries(TEXT, TEXT, min_size=1, max_size=2)
MAYBE = st.none() | JSON_TEXT
OPTIONS = st.lists(
    st.fixed_dictionaries({"value": TEXT | st.booleans(), "description": MAYBE}),
    min_size=2,
    max_size=4,
    unique_by=lambda it: (type(it["value"]), it["value"]),
)
LEVELS = st.lists(
    st.fixed_dictionaries({"label": JSON_TEXT, "description": MAYBE}), min_size=2, max_size=4
)
QUESTIONS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("predicate"), "instructions": JSON_TEXT, "yes": MAYBE, "no": MAYBE}
    ),
    st.fixed_dictionaries({"type": st.just("choice"), "instructions": MAYBE, "options": OPTIONS}),
    st.fixed_dictionaries({"type": st.just("score"), "instructions": MAYBE, "levels": LEVELS}),
).map(TypedQuestion.model_validate)


def read_system_one(said: dict[str, Any]) -> TypedQuestion:
    return TypedQuestion.model_validate(dict(SystemOneQuestion.model_validate(said)))


def read_openai(said: dict[str, Any]) -> TypedQuestion:
    return TypedQuestion.model_validate(fields_of(DecisionQuestion.model_validate(said)))


@given(QUESTIONS)
def test_an_upstream_reads_the_same_question_or_is_not_asked(question: TypedQuestion) -> None:
    for protocol, read in ((SYSTEM_ONE, read_system_one), (OPENAI, read_openai)):
        said = protocol.say(question)
        if said is not None:
            assert read(json.loads(json.dumps(said))).digest == question.digest


def test_each_protocol_says_its_plain_questions() -> None:
    plain = [
        {"type": "noul", "instructions": "Is it late?"},
        {"type": "choice", "instructions": "?", "options": [{"value": "a"}, {"value": "b"}]},
        {"type": "score", "instructions": "?", "criteria": ["low", "high"]},
    ]
    for protocol in PROTOCOLS.values():
        assert all(protocol.say(TypedQuestion.model_validate(it)) for it in plain)
    sides = {"type": "noul", "criteria": {"true": "It is late"}}
    flags = {"type": "choice", "instructions": "?", "options": [{"value": "a"}, {"value": True}]}
    assert SYSTEM_ONE.say(TypedQuestion.model_validate(sides))
    assert not OPENAI.say(TypedQuestion.model_validate(sides))
    assert not SYSTEM_ONE.say(TypedQuestion.model_validate(flags))
    assert OPENAI.say(TypedQuestion.model_validate(flags))


ASKED = [
    TypedQuestion.model_validate(it)
    for it in (
        {"type": "noul", "instructions": "?"},
        {"type": "choice", "instructions": "?", "criteria": {"a": None, "b": None}},
        {"type": "score", "instructions": "?", "criteria": ["low", "high", "top"]},
    )
]
NAMED: dict[str, Any] = {
    "answers": {
        "q0": {"type": "noul", "noul": 0.8},
        "q1": {"type": "choice", "choice": "b", "probabilities": {"a": 0.3, "b": 0.7}},
        "q2": {
            "type": "score",
            "score": 1.6,
            "legend": {"0": "low", "1": "high", "2": "top"},
            "probabilities": {"0": 0.1, "1": 0.2, "2": 0.7},
        },
    }
}
LISTED: dict[str, Any] = {
    "answers": [
        {"name": "q0", "type": "predicate", "probability": 0.8},
        {
            "name": "q1",
            "type": "choice",
            "choice": "b",
            "probabilities": [
                {"value": "b", "probability": 0.7},
                {"value": "a", "probability": 0.3},
            ],
        },
        {
            "name": "q2",
            "type": "score",
            "score": 1.6,
            "probabilities": [
                {"value": at, "label": label, "probability": share}
                for at, (label, share) in enumerate(
                    zip(("low", "high", "top"), (0.1, 0.2, 0.7), strict=True)
                )
            ],
        },
    ]
}
SHARES = [(0.2, 0.8), (0.3, 0.7), (0.1, 0.2, 0.7)]


def reading(reply: object, of: str) -> Any:  # noqa: ANN401 - shares or None
    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return read_reply(PROTOCOLS[of], data, ASKED)


def test_answers_have_the_order_of_the_question_and_a_refusal_is_one() -> None:
    refused = copy.deepcopy(LISTED)
    refused["answers"][0] = {"name": "q0", "type": "refusal"}

    for reply, of in ((NAMED, "/v1/systemone"), (LISTED, "/v1/decisions")):
        for found, wanted in zip(reading(reply, of), SHARES, strict=True):
            assert found == pytest.approx(wanted)
    assert reading(refused, "/v1/decisions")[0] is None


Spoil = Callable[[dict[str, Any]], object]
SPOILT: dict[str, Spoil] = {
    "an answer is missing": lambda it: it["answers"].pop("q1"),
    "another id": lambda it: it["answers"].update(q9=it["answers"].pop("q1")),
    "an answer too many": lambda it: it["answers"].update(q9=it["answers"]["q0"]),
    "another type": lambda it: it["answers"].update(q1=it["answers"]["q0"]),
    "an unknown type": lambda it: it["answers"]["q0"].update(type="box"),
    "above one": lambda it: it["answers"]["q0"].update(noul=1.01),
    "below zero": lambda it: it["answers"]["q0"].update(noul=-0.01),
    "not a number": lambda it: it["answers"]["q0"].update(noul=float("nan")),
    "a text": lambda it: it["answers"]["q0"].update(noul="0.8"),
    "true": lambda it: it["answers"]["q0"].update(noul=True),
    "an option is missing": lambda it: it["answers"]["q1"]["probabilities"].pop("a"),
    "an option too many": lambda it: it["answers"]["q1"]["probabilities"].update(c=0.0),
    "sums off": lambda it: it["answers"]["q1"]["probabilities"].update(a=0.1),
    "all zero": lambda it: it["answers"]["q1"].update(probabilities={"a": 0, "b": 0}),
    "not the likeliest": lambda it: it["answers"]["q1"].update(choice="a"),
    "no option": lambda it: it["answers"]["q1"].update(choice="c"),
    "no choice": lambda it: it["answers"]["q1"].update(choice=None),
    "no score": lambda it: it["answers"]["q2"].update(score=None),
    "a score that is true": lambda it: it["answers"]["q2"].update(score=True),
    "a score that is no number": lambda it: it["answers"]["q2"].update(score=float("nan")),
    "a score beyond all floats": lambda it: it["answers"]["q2"].update(score=10**400),
    "a score that is a text": lambda it: it["answers"]["q2"].update(score="1.6"),
    "a legend that is a list": lambda it: it["answers"]["q2"].update(legend=["low"]),
    "probabilities in a list": lambda it: it["answers"]["q2"].update(probabilities=[0.1]),
    "a choice that is a list": lambda it: it["answers"]["q1"].update(choice=["b"]),
    "a list for an object": lambda it: it["answers"].update(q1=[]),
    "another score": lambda it: it["answers"]["q2"].update(score=0.2),
    "other levels": lambda it: it["answers"]["q2"]["legend"].update({"1": "top", "2": "high"}),
    "a level is missing": lambda it: it["answers"]["q2"]["probabilities"].pop("2"),
    "a strange place": lambda it: it["answers"]["q2"]["probabilities"].update({"00": 0.0}),
    "no answers": lambda it: it.clear(),
}
SPOILT_LIST: dict[str, Spoil] = {
    "an answer is missing": lambda it: it["answers"].pop(),
    "another order": lambda it: it["answers"].reverse(),
    "no name": lambda it: it["answers"][0].pop("name"),
    "an option twice": lambda it: it["answers"][1]["probabilities"][1].update(value="b"),
    "a value for a text": lambda it: it["answers"][1]["probabilities"][1].update(value=True),
    "other levels": lambda it: it["answers"][2]["probabilities"][0].update(label="top"),
    "a value that is a list": lambda it: it["answers"][2]["probabilities"][0].update(value=[]),
    "true for a place": lambda it: it["answers"][2]["probabilities"][1].update(value=True),
    "an option that is a text": lambda it: it["answers"][1]["probabilities"].append("b"),
    "a level twice": lambda it: it["answers"][2]["probabilities"][0].update(value=1),
    "sums off": lambda it: it["answers"][2]["probabilities"][2].update(probability=0.5),
}


@pytest.mark.parametrize(
    ("reply", "path", "spoil"),
    [
        *((NAMED, "/v1/systemone", it) for it in SPOILT.values()),
        *((LISTED, "/v1/decisions", it) for it in SPOILT_LIST.values()),
    ],
    ids=[*SPOILT, *(f"openai-{it}" for it in SPOILT_LIST)],
)
def test_a_spoilt_reply_is_no_answer(reply: dict[str, Any], path: str, spoil: Spoil) -> None:
    spoilt = copy.deepcopy(reply)
    spoil(spoilt)

    with pytest.raises(UnusableReplyError):
        reading(spoilt, path)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"answers": 1}', b"\xff", b"<html>"])
@pytest.mark.parametrize("of", PROTOCOLS)
def test_no_reply_at_all_is_no_answer_and_is_not_repeated(data: bytes, of: str) -> None:
    with pytest.raises(UnusableReplyError) as caught:
        reading(data, of)
    assert "html" not in str(caught.value)
