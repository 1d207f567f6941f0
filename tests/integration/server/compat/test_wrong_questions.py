"""Wrong typed questions have the errors of their protocols, and fail alone if they can."""

from collections.abc import Callable

import httpx
import pytest

from doubles.compat import TEXT, post
from doubles.questions import ANGER, EMBEDDING, TEAM, UNKNOWN, URGENT, body, theirs

WRONG: dict[str, dict[str, object]] = {
    "unknown type": body({"q": {"type": "box", "instructions": "?"}}),
    "no type": body({"q": {"instructions": "?"}}),
    "256 options": body({"q": {**TEAM, "criteria": {str(it): None for it in range(256)}}}),
    "1 option": body({"q": {**TEAM, "criteria": {"a": None}}}),
    "empty option": body({"q": {**TEAM, "criteria": {"": None, "b": None}}}),
    "list of options": body({"q": {**TEAM, "criteria": ["a", "b"]}}),
    "1 level": body({"q": {**ANGER, "criteria": ["a"]}}),
    "11 levels": body({"q": {**ANGER, "criteria": list("abcdefghijk")}}),
    "object of levels": body({"q": {**ANGER, "criteria": {"0": "a", "1": "b"}}}),
    "null level": body({"q": {**ANGER, "criteria": ["a", None]}}),
    "other sides": body({"q": {**URGENT, "criteria": {"yes": "a"}}}),
    "nothing asked": body({"q": {"type": "noul"}}),
    "unknown field": body({"q": {**URGENT, "min": 1}}),
    "empty id": body({"": URGENT}),
    "no questions": body({}),
    "list of questions": body([URGENT]),
    "401 questions": body({str(it): URGENT for it in range(401)}),
    "no state": body(state=None),
    "empty state": body(state=" "),
    "number as state": body(state=3),
    "image": body(assets={"a": {"type": "image"}}),
    "too many options": body(
        {str(at): {**TEAM, "criteria": {str(it): None for it in range(251)}} for at in range(4)}
    ),
    "both ways": body({"q": {**TEAM, "options": [{"value": "a"}, {"value": "b"}]}}),
    "text as criteria": body({"q": {**TEAM, "criteria": "ab"}}),
    "criterion without text": body({"q": {**URGENT, "criteria": {"true": ""}}}),
    "long criterion": body({"q": {**URGENT, "criteria": {"true": "a" * 40_000}}}),
    "deep instructions": body({"q": {**URGENT, "instructions": eval("[" * 40 + "]" * 40)}}),  # noqa: S307 - a literal
    "long state": body(state="a" * 40_000),
    "NUL": body(state="a\0"),
    "unreadable state": body({"q": UNKNOWN}, state="\U000e0041 \U000e0042"),
    "unreadable option": body({"q": {**TEAM, "criteria": {"a": None, "\U000e0041": None}}}),
    "deep state": body(state=eval("[" * 40 + "]" * 40)),  # noqa: S307 - a literal
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_has_the_error_of_system_one(asking: Callable[..., None], case: str) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        refused = await post(client, "/v1/systemone", WRONG[case], 422)
        for it in refused["detail"]:
            assert it["loc"][0] == "body"
            assert it["msg"]
            assert it["type"]

    asking(scenario, **EMBEDDING)


@pytest.mark.parametrize("state", ["", " ", "a\0", "a" * 40_000])
def test_a_text_that_cannot_be_read_is_refused_without_a_known_question(
    asking: Callable[..., None], state: str
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        await post(client, "/v1/systemone", body({"x": UNKNOWN}, state=state), 422)
        sent = {"model": "nunatak", "input": state, "questions": [theirs(UNKNOWN)]}
        await post(client, "/v1/decisions", sent, 422)

    asking(scenario)


def test_an_unreadable_question_fails_alone_and_by_its_name(asking: Callable[..., None]) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        asked = [
            theirs(URGENT, "u"),
            {**theirs(UNKNOWN, "empty"), "instructions": ""},
            theirs(UNKNOWN),
        ]
        sent = {"model": "nunatak", "input": TEXT, "questions": asked}
        known, empty, other = (await post(client, "/v1/decisions", sent))["answers"]
        assert [it["type"] for it in (known, empty, other)] == ["predicate", "refusal", "predicate"]
        assert empty["x_reason"]["code"] == "question_unreadable"
        assert "question 2 of the request ('empty')" in empty["x_reason"]["message"]

    asking(scenario, **EMBEDDING)


IMAGE = {"type": "input_image", "image_url": "https://nowhere/"}


@pytest.mark.parametrize(
    "change",
    [
        {"input": [{"role": "user", "content": [IMAGE]}]},
        {"input": []},
        {"input": " "},
        {"input": [{"type": "function_call", "name": "f", "arguments": "", "call_id": "1"}]},
        {"questions": []},
        {"questions": [theirs(URGENT, "a"), theirs(TEAM, "a")]},
        {"questions": [{**theirs(URGENT), "name": ""}]},
        {"questions": [{"type": "predicate"}]},
        {"questions": [{**theirs(URGENT), "instructions": [IMAGE]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": "a"}]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": "a"}, {"value": "a"}]}]},
        {"questions": [{**theirs(TEAM), "choices": {"a": "b"}}]},
        {"questions": [{**theirs(URGENT), "levels": [{"label": "a"}, {"label": "b"}]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": str(it)} for it in range(256)]}]},
        {
            "questions": [
                {**theirs(TEAM), "choices": [{"value": str(it)} for it in range(251)]}
                for _ in range(4)
            ]
        },
        {"questions": [{**theirs(TEAM), "choices": [{"value": ""}, {"value": "b"}]}]},
        {"questions": [{**theirs(TEAM), "choices": [{"value": 1}, {"value": "b"}]}]},
        {"questions": [{**theirs(TEAM), "choices": None}]},
        {"questions": [{**theirs(TEAM), "criteria": {"a": None, "b": None}}]},
        {"questions": [{**theirs(ANGER), "levels": [{"label": str(it)} for it in range(11)]}]},
        {"questions": [theirs(URGENT)] * 401},
        {"questions": {"u": theirs(URGENT)}},
        {"input": {"a": 1}},
        {"input": [{"role": "user", "content": [{"type": "input_json", "data": [1]}]}]},
        {"input": "a\0"},
        {"input": "a" * 40_000},
        {"unheard": 1},
    ],
)
def test_wrong_input_has_the_error_of_openai(
    asking: Callable[..., None], change: dict[str, object]
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        sent = {"model": "nunatak", "input": TEXT, "questions": [theirs(URGENT)], **change}
        refused = await post(client, "/v1/decisions", sent, 422)
        assert refused["error"]["type"] == "invalid_request_error"

    asking(scenario)


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model": "nunatak", "questions": NaN}',
        b'{"model": "a", "model": "b", "questions": {}}',
        b"{",
        b'{"model": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["NaN", "a field twice", "no JSON", "too deep"],
)
def test_what_is_no_json_has_the_error_of_its_protocol(
    asking: Callable[..., None], sent: bytes
) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        headers = {"content-type": "application/json"}
        theirs, openai = [
            await client.post(path, content=sent, headers=headers)
            for path in ("/v1/systemone", "/v1/decisions")
        ]
        assert (theirs.status_code, theirs.json()["detail"][0]["loc"]) == (422, ["body"])
        assert (openai.status_code, openai.json()["error"]["code"]) == (400, "invalid_json")

    asking(scenario)
