"""A campaign: every shape of a gateway's call, with an attack or a name in every place.

The guards decide by one text alone, so a call with another text in the same place must pass.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import httpx
import orjson
import pytest

from doubles.compat import DETECTORS, detector, litellm, portkey, post
from doubles.policies import make_policy, make_rule, when
from doubles.serving import running_client
from nunatak_contract.enums import UnjudgedPart, VerdictAction
from nunatak_model import Backbone
from nunatak_registry import Registry

Json = Any
Place = Callable[[str], Json]
"""Returns a value with a text in one place."""
HARMLESS = "where is my parcel?"
IMAGE = {"type": "image_url", "image_url": {"url": "https://nowhere.example/a.png"}}
TEXTS: dict[str, Place] = {
    "text": lambda it: it,
    "list": lambda it: [HARMLESS, it],
    "twice": lambda it: [it] * 8,
}
"""Inputs of routes that read texts alone."""
ATTACK = "ann met oslo z yes."
"""The one text that the guards stop; the tiny task gives this text the largest score."""
LABEL = "urgent"
PATHS = {
    "litellm": "/v1/verdicts/{}/beta/litellm_basic_guardrail_api",
    "portkey": "/v1/verdicts/{}/portkey",
    "moderations": "/v1/moderations",
    "nemo": "/v1/verdicts/{}/classify",
    "verdicts": "/v1/verdicts/{}",
    **{it: it for it in DETECTORS},
}


def said(content: Json, role: str = "user", **fields: Json) -> dict[str, Json]:
    return {"role": role, "content": content, **fields}


def part(text: str, kind: str = "text") -> dict[str, Json]:
    return {"type": kind, "text": text}


MESSAGES: dict[str, Place] = {
    "content": said,
    "system": lambda it: said(it, "system"),
    "developer": lambda it: said(it, "developer"),
    "assistant": lambda it: said(it, "assistant"),
    "tool": lambda it: said(it, "tool", tool_call_id="call_1"),
    "role": lambda it: said(HARMLESS, it),
    "name": lambda it: said(HARMLESS, name=it),
    "reasoning": lambda it: said(HARMLESS, "assistant", reasoning_content=it),
    "refusal": lambda it: said(None, "assistant", refusal=it),
    "unknown-field": lambda it: said(HARMLESS, other=it),
    "unknown-object": lambda it: said(HARMLESS, other={"deep": [{"er": it}]}),
    "field-name": lambda it: said({it: HARMLESS}),
    "setting": lambda it: said(HARMLESS, tool_call_id=it),
    "object": lambda it: said({"text": it}),
    "part": lambda it: said([part(it)]),
    "part-of-two": lambda it: said([part(HARMLESS), part(it)]),
    "input-text": lambda it: said([part(it, "input_text")]),
    "output-text": lambda it: said([part(it, "output_text")], "assistant"),
    "thinking": lambda it: said(
        [{"type": "thinking", "thinking": it, "signature": "aB+/" * 99 + "=="}], "assistant"
    ),
    "signature": lambda it: said(HARMLESS, signature=it),
    "result": lambda it: said([{"type": "tool_result", "tool_use_id": "t", "content": it}]),
    "result-parts": lambda it: said([{"type": "tool_result", "content": [part(it)]}]),
    "found": lambda it: said([{"type": "search_result", "title": HARMLESS, "source": it}]),
    "text-file": lambda it: said([{"type": "document", "source": {"type": "text", "data": it}}]),
    "untyped": lambda it: said([{"text": it}]),
    "string-in-list": lambda it: said([it]),
    "nested-text": lambda it: said([{"type": "text", "text": {"value": it}}]),
    "gemini": lambda it: {"role": "user", "parts": [{"text": it}]},
    "output": lambda it: {"type": "function_call_output", "call_id": "c", "output": it},
    "custom-output": lambda it: {"type": "custom_tool_call_output", "call_id": "c", "output": it},
    "blank-first": lambda it: said([part(" "), part(it)]),
    "twice": lambda it: said([part(it), part(it)]),
}
"""Messages with a text that a model may read."""
BESIDE: dict[str, Place] = {
    "message-of-type": lambda it: said(it, type="image"),
    "title": lambda it: said([{"type": "document", "source": {"type": "url"}, "title": it}]),
    "file-name": lambda it: said([{"type": "file", "file": {"file_id": "f", "filename": it}}]),
    "document-name": lambda it: said([{"document": {"name": it, "source": {"bytes": "aaaa"}}}]),
    "document-text": lambda it: said([{"document": {"source": {"content": [{"text": it}]}}}]),
    "document-data": lambda it: said([{"type": "document", "document": {"data": {"a": it}}}]),
}
"""Messages with a part that no task reads, and a text in it or beside it."""
UNREAD: dict[str, Place] = {
    **BESIDE,
    "image": lambda _: said([IMAGE]),
    "image-string": lambda _: said([{"type": "image_url", "image_url": "https://nowhere/"}]),
    "image-object": lambda _: said(IMAGE),
    "input-image": lambda _: said([{"type": "input_image", "file_id": "f"}]),
    "image-base64": lambda _: said([{"type": "image", "source": {"data": "aaaa"}}]),
    "audio": lambda _: said([{"type": "input_audio", "input_audio": {"data": "aaaa"}}]),
    "file": lambda it: said([{"type": "file", "file": {"file_data": it}}]),
    "file-id": lambda _: said([{"type": "input_file", "file_id": "f"}]),
    "document": lambda it: said([{"type": "document", "source": {"type": "base64", "data": it}}]),
    "image-of-type": lambda it: said({"type": "image", "source": {"data": it}}),
    "video": lambda _: said([{"type": "video_url", "video_url": {"url": "https://nowhere/"}}]),
    "sound-of-no-type": lambda _: said([{"audio_url": "https://nowhere.example/a.wav"}]),
    "embeddings-of-no-type": lambda it: said([{"image_embeds": it}]),
    "inline": lambda _: {"role": "user", "parts": [{"inlineData": {"data": "aaaa"}}]},
    "tool-use": lambda it: said([{"type": "tool_use", "input": {"a": it}}], "assistant"),
    "tool-use-of-bedrock": lambda it: said([{"toolUse": {"input": {"id": "a", "n": 5, "b": it}}}]),
    "tool-calls": lambda it: said(None, "assistant", tool_calls=[{"function": {"name": it}}]),
    "function-call": lambda it: said(None, "assistant", function_call={"arguments": it}),
    "new-type": lambda it: said([{"type": "hologram", "hologram": it}]),
    "no-type": lambda it: said([{"type": ["text"], "hologram": it}]),
    "number": lambda _: said(5550717),
    "token-ids": lambda _: said([1, 2, 3]),
    "item": lambda _: {"type": "item_reference", "id": "m"},
}
"""Messages with a part that no task reads."""
FIELDS: dict[str, Place] = {
    "prompt": lambda it: {"prompt": it},
    "prompts": lambda it: {"prompt": [HARMLESS, it]},
    "input": lambda it: {"input": it},
    "inputs": lambda it: {"input": [HARMLESS, it]},
    "instructions": lambda it: {"input": HARMLESS, "instructions": it},
    "system": lambda it: {"messages": [said(HARMLESS)], "system": it},
    "system-parts": lambda it: {"messages": [said(HARMLESS)], "system": [part(it)]},
    "prediction": lambda it: {"prompt": HARMLESS, "prediction": {"type": "content", "content": it}},
    "metadata": lambda it: {"prompt": HARMLESS, "metadata": {"note": it}},
    "documents": lambda it: {"messages": [said(HARMLESS)], "documents": [{HARMLESS: it}]},
    "schema": lambda it: {"prompt": HARMLESS, "response_format": {"anyOf": [{"title": it}]}},
    "user": lambda it: {"prompt": HARMLESS, "user": it},
}
"""Whole calls of Portkey with a text outside of messages."""
UNREAD_FIELDS: dict[str, Place] = {
    "tools": lambda it: {"messages": [said(it)], "tools": [{"type": "function"}]},
    "functions": lambda it: {"messages": [said(it)], "functions": [{"name": "f"}]},
    "audio": lambda it: {"messages": [said(it)], "audio": {"voice": "alloy"}},
    "prompt-ids": lambda _: {"prompt": [1, 2, 3]},
    "prompts-ids": lambda _: {"prompt": [[1, 2], [3]]},
    "embeddings": lambda it: {"prompt": HARMLESS, "prompt_embeds": it},
    "mixed-ids": lambda it: {"prompt": [it, 5]},
}
"""Whole calls of Portkey with a part that no task reads."""
RESPONSES: dict[str, Place] = {
    "message": lambda it: {"choices": [{"index": 0, "message": said(it, "assistant")}]},
    "second": lambda it: {"choices": [{"message": said(HARMLESS)}, {"message": said(it)}]},
    "completion": lambda it: {"choices": [{"index": 0, "text": it, "finish_reason": "stop"}]},
    "anthropic": lambda it: {"role": "assistant", "content": [part(HARMLESS), part(it)]},
    "reasoning": lambda it: {"choices": [{"message": said(HARMLESS, reasoning_content=it)}]},
    "citation": lambda it: {
        "choices": [{"message": said(HARMLESS, annotations=[part(it, "url_citation")])}]
    },
}
"""Answers of language models in Portkey's calls."""
NO_TEXTS: dict[str, Place] = {
    "part": lambda it: [part(it), part(HARMLESS)],
    "image": lambda _: [IMAGE],
    "pair": lambda it: {"text": HARMLESS, "text_pair": it},
    "null": lambda _: None,
    "nulls": lambda it: [it, None],
    "ids": lambda _: [1, 2],
    "many": lambda it: [it] * 9,
    "blank": lambda it: [it, " "],
    "field": lambda it: {"text": it, "more": it},
}
"""Inputs that routes of texts refuse."""


def with_content(message: Json, *, is_last: bool) -> list[Json]:
    """Return a conversation with a message at its end, or before another."""
    return [message] if is_last else [message, said(HARMLESS)]


def text_of(call: Json) -> Json:
    """Return the text that Portkey makes from a request."""
    if "prompt" in call:
        return call["prompt"]
    if "input" in call:
        return "\n".join(call["input"]) if isinstance(call["input"], list) else call["input"]
    content: Json = call["messages"][-1].get("content")
    if not isinstance(content, list):
        return content
    parts = cast("list[Json]", content)
    return "\n".join(map(_text_in, parts)) or parts


def _text_in(item: Json) -> str:
    match item:
        case {"text": str(text)}:
            return text
        case _:
            return ""


@dataclass(frozen=True)
class Shape:
    """A call of one gateway with a text in one place."""

    gateway: str
    name: str
    build: Place
    is_read: bool = True
    """Whether tasks read the whole call."""

    def __str__(self) -> str:
        return f"{self.gateway}-{self.name}"


def of_litellm() -> Iterator[Shape]:
    def messages(place: Place, has_texts: bool) -> Place:  # noqa: FBT001 - one of two
        def build(text: str) -> Json:
            sent = with_content(place(text), is_last=has_texts)
            return litellm(*[text] * has_texts, structured_messages=sent)

        return build

    def beside(field: str) -> Place:
        return lambda it: litellm(it, **{field: [{"type": "function"}]})

    for has_texts, (name, place) in product((True, False), (MESSAGES | UNREAD).items()):
        own, build = (
            f"{name}-{'with' if has_texts else 'without'}-texts",
            messages(place, has_texts),
        )
        yield Shape("litellm", own, build, is_read=name in MESSAGES)
    for field in ("images", "tools", "tool_calls"):
        yield Shape("litellm", field, beside(field), is_read=False)
    yield Shape("litellm", "texts", lambda it: litellm(HARMLESS, it))
    yield Shape("litellm", "response", lambda it: litellm(it, input_type="response"))


def asked(call: Json, text: Json) -> Json:
    return portkey("", request={"json": call, "text": text})


def conversation(place: Place, *, is_last: bool, is_blank: bool) -> Place:
    def build(text: str) -> Json:
        call = {"messages": with_content(place(text), is_last=is_last)}
        return asked(call, "" if is_blank else text_of(call))

    return build


def whole_request(place: Place) -> Place:
    return lambda it: asked(place(it), text_of(place(it)))


def response(place: Place) -> Place:
    return lambda it: portkey("", "afterRequestHook", response={"json": place(it), "text": ""})


def of_portkey() -> Iterator[Shape]:
    kinds = {"last": (True, False), "first": (False, False), "blank": (True, True)}
    for kind, (name, place) in product(kinds, (MESSAGES | UNREAD).items()):
        is_last, is_blank = kinds[kind]
        build = conversation(place, is_last=is_last, is_blank=is_blank)
        is_read = name in MESSAGES
        yield Shape("portkey", f"{name}-{kind}", build, is_read=is_read)
    for name, place in (FIELDS | UNREAD_FIELDS).items():
        is_read = name in FIELDS
        yield Shape("portkey", name, whole_request(place), is_read=is_read)
    for name, place in RESPONSES.items():
        yield Shape("portkey", f"response-{name}", response(place))


def under(field: str, place: Place) -> Place:
    return lambda it: {field: place(it)}


def of_texts() -> Iterator[Shape]:
    """Yield the shapes of moderations and of the native route."""
    for gateway, field in (("moderations", "input"), ("verdicts", "inputs")):
        for name, place in (TEXTS | NO_TEXTS).items():
            build = under(field, place)
            is_read = name in TEXTS or (gateway, name) == ("moderations", "part")
            yield Shape(gateway, name, build, is_read=is_read)
    for name, place in (TEXTS | NO_TEXTS).items():
        yield Shape("nemo", name, under("input", place), is_read=name == "text")


def of_detectors() -> Iterator[Shape]:
    contents, chat = DETECTORS

    def messages(place: Place) -> Place:
        return lambda it: {**detector("", chat), "messages": with_content(place(it), is_last=True)}

    for name, place in (TEXTS | NO_TEXTS).items():
        if name != "text":
            is_read = name in {*TEXTS, "blank", "many"}
            yield Shape(contents, name, under("contents", place), is_read=is_read)
    for name, place in (MESSAGES | UNREAD).items():
        build = messages(place)
        yield Shape(chat, name, build, is_read=name in MESSAGES)
    tools: Json = {**detector(HARMLESS, chat), "tools": [{"type": "function"}]}
    yield Shape(chat, "tools", lambda _: tools, is_read=False)


SHAPES = [*of_litellm(), *of_portkey(), *of_texts(), *of_detectors()]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a gateway does with a call after an answer."""

    passes: bool
    content: Json = None
    """What the language model gets; None if the call goes on as it is."""


async def outcome_of(client: httpx.AsyncClient, shape: Shape, policy: str, text: str) -> Outcome:
    body = shape.build(text)
    if shape.gateway in {"moderations", "nemo"}:
        body = {**body, "model": policy}
    headers = {"detector-id": policy}
    answer = await client.post(PATHS[shape.gateway].format(policy), json=body, headers=headers)
    assert answer.status_code in {200, 422}, answer.text
    found: Json = answer.json()
    if shape.gateway == "portkey":
        # Portkey lets a call pass on an error.
        passes = answer.status_code != 200 or found["verdict"]
        return Outcome(passes=passes, content=found.get("transformedData"))
    if answer.status_code != 200:
        return Outcome(passes=False)
    match shape.gateway:
        case "litellm":
            return Outcome(passes=found["action"] != "BLOCKED", content=found["texts"])
        case "nemo":
            passes = found["data"][0]["label"] not in {"block", "mask"}
        case "moderations":
            passes = not any(it["flagged"] for it in found["results"])
        case "verdicts":
            return Outcome(passes=found["action"] != "block", content=found["texts"])
        case _:
            passes = not any(found)
    return Outcome(passes=passes)


@pytest.fixture(scope="module", autouse=True)
async def policies(registry: Registry, backbone: Backbone) -> None:
    """Guards that stop the attack alone, and a guard that masks every word."""
    scores = dict[str, float]()
    flag = make_rule(when("topic", LABEL, threshold=1e-9), action=VerdictAction.FLAG)
    registry.policies.put(make_policy(flag, name="measure"))
    async with running_client(backbone, registry) as client:
        for text in (ATTACK, *("\n".join([HARMLESS] * number) for number in (1, 2, 3, 4))):
            found = await post(client, PATHS["verdicts"].format("measure"), {"inputs": text})
            (scores[text],) = (it["score"] for it in found["rules"])
    attack = scores.pop(ATTACK)
    assert attack > max(scores.values()), "the attack must stand out for the tiny task"
    threshold = (attack + max(scores.values())) / 2
    block = make_rule(when("topic", LABEL, threshold=threshold))
    mask = make_rule(when("people", "X"), action=VerdictAction.MASK)
    for policy in (
        make_policy(block, name="block"),
        make_policy(block, name="open", unjudged=frozenset(UnjudgedPart)),
        make_policy(mask, name="mask"),
    ):
        registry.policies.put(policy)


READ = [it for it in SHAPES if it.is_read]
UNREAD_SHAPES = [it for it in SHAPES if not it.is_read]


async def passing(
    client: httpx.AsyncClient, policy: str, shapes: list[Shape], text: str
) -> set[str]:
    found = await asyncio.gather(*[outcome_of(client, it, policy, text) for it in shapes])
    return {str(it) for it, outcome in zip(shapes, found, strict=True) if outcome.passes}


async def test_no_shape_of_a_call_lets_an_attack_through(client: httpx.AsyncClient) -> None:
    assert await passing(client, "block", SHAPES, ATTACK) == set()
    assert await passing(client, "block", UNREAD_SHAPES, HARMLESS) == set()


def cut_calls(pieces: Sequence[str]) -> Iterator[Shape]:
    """Yield calls in which a text is cut into pieces."""

    def always(body: Json) -> Place:
        return lambda _: body

    bodies: dict[str, Json] = {
        "texts": litellm(*pieces),
        "bare": litellm(*pieces, structured_messages=None),
    }
    messages: dict[str, list[Json]] = {
        "messages": [said(it) for it in pieces],
        "parts": [said([part(it) for it in pieces])],
        "named": [said(it, name="bo") for it in pieces],
        "turns": [it for text in pieces for it in (said("Be kind.", "assistant"), said(text))],
    }
    calls: dict[str, Json] = {it: {it: list(pieces)} for it in ("prompt", "input")}
    for name, sent in messages.items():
        around = [said("Be kind.", "system"), *sent]
        bodies[name] = litellm(HARMLESS, structured_messages=around)
        calls[name] = {"messages": around}
    for name, body in bodies.items():
        yield Shape("litellm", name, always(body))
    for name, call in calls.items():
        yield Shape("portkey", name, always(asked(call, "\n")))
        if "messages" in call:
            yield Shape(DETECTORS[1], name, always(call))


@pytest.mark.parametrize("is_in_a_word", [False, True])
async def test_an_attack_that_is_cut_over_texts_is_blocked(
    client: httpx.AsyncClient, registry: Registry, *, is_in_a_word: bool
) -> None:
    async def measure(client: httpx.AsyncClient, text: str) -> float:
        found = await post(client, PATHS["verdicts"].format("measure"), {"inputs": text})
        return found["rules"][0]["score"]

    chance = random.Random(0)
    for _ in range(200):
        words = chance.choices(["ann", "met", "bob", "oslo", "bergen", "never", "again"], k=6)
        text = " ".join(words)
        place = text.index(" ", 12) - (2 if is_in_a_word else 0)
        pieces = (text[:place], text[place:].lstrip())
        whole = await measure(client, text if is_in_a_word else "\n".join(pieces))
        most = max([await measure(client, it) for it in pieces])
        if whole > most:
            break
    else:
        pytest.fail("no text scores more than its pieces")
    rule = make_rule(when("topic", LABEL, threshold=(whole + most) / 2))
    name = f"cut-{'in' if is_in_a_word else 'between'}-words"
    registry.policies.put(make_policy(rule, name=name))
    alone = await post(client, PATHS["verdicts"].format(name), {"inputs": list(pieces)})

    assert alone["action"] == "allow"
    assert await passing(client, name, list(cut_calls(pieces)), "") == set()


async def test_a_call_of_texts_passes_without_an_attack(client: httpx.AsyncClient) -> None:
    assert await passing(client, "block", READ, HARMLESS) == set(map(str, READ))


async def test_a_policy_that_names_the_parts_still_judges_the_texts(
    client: httpx.AsyncClient,
) -> None:
    gateways = [it for it in UNREAD_SHAPES if it.gateway in {"litellm", "portkey"}]

    judged = [*READ, *(it for it in gateways if it.name.startswith(tuple(BESIDE)))]
    assert await passing(client, "open", judged, ATTACK) == set()
    assert await passing(client, "open", gateways, HARMLESS) == set(map(str, gateways))


async def test_no_shape_of_a_call_keeps_a_text_that_a_policy_masks(
    client: httpx.AsyncClient,
) -> None:
    found = await asyncio.gather(*[outcome_of(client, it, "mask", ATTACK) for it in SHAPES])
    outcomes = dict(zip(map(str, SHAPES), found, strict=True))
    kept = {
        name
        for name, it in outcomes.items()
        if it.passes and (it.content is None or b"ann met" in orjson.dumps(it.content))
    }
    masked = {name for name, it in outcomes.items() if it.passes and it.content is not None}

    assert kept == set()
    assert {f"portkey-{it}-last" for it in ("content", "part-of-two", "name")} <= masked
    assert "litellm-content-with-texts" in masked
