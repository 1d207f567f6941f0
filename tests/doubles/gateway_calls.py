"""Calls to language models in the shapes of gateways: where a text or another part can stand."""

from collections.abc import Callable
from typing import Any, cast

Json = Any
Place = Callable[[str], Json]
"""Returns a value with a text in one place."""

HARMLESS = "where is my parcel?"
IMAGE = {"type": "image_url", "image_url": {"url": "https://nowhere.example/a.png"}}


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
    "untyped": lambda it: said([{"text": it}]),
    "string-in-list": lambda it: said([it]),
    "nested-text": lambda it: said([{"type": "text", "text": {"value": it}}]),
    "gemini": lambda it: {"role": "user", "parts": [{"text": it}]},
    "output": lambda it: {"type": "function_call_output", "call_id": "c", "output": it},
    "blank-first": lambda it: said([part(" "), part(it)]),
    "twice": lambda it: said([part(it), part(it)]),
}
"""Messages with a text that a model may read."""

UNREAD: dict[str, Place] = {
    "image": lambda _: said([IMAGE]),
    "image-string": lambda _: said([{"type": "image_url", "image_url": "https://nowhere/"}]),
    "image-object": lambda _: said(IMAGE),
    "input-image": lambda _: said([{"type": "input_image", "file_id": "f"}]),
    "image-base64": lambda _: said([{"type": "image", "source": {"data": "aaaa"}}]),
    "audio": lambda _: said([{"type": "input_audio", "input_audio": {"data": "aaaa"}}]),
    "file": lambda it: said([{"type": "file", "file": {"file_data": it}}]),
    "file-id": lambda _: said([{"type": "input_file", "file_id": "f"}]),
    "document": lambda it: said([{"type": "document", "source": {"type": "text", "data": it}}]),
    "video": lambda _: said([{"type": "video_url", "video_url": {"url": "https://nowhere/"}}]),
    "inline": lambda _: {"role": "user", "parts": [{"inlineData": {"data": "aaaa"}}]},
    "tool-use": lambda it: said([{"type": "tool_use", "input": {"a": it}}], "assistant"),
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

TEXTS: dict[str, Place] = {
    "text": lambda it: it,
    "list": lambda it: [HARMLESS, it],
    "twice": lambda it: [it] * 8,
}
"""Inputs of routes that read texts alone."""

NO_TEXTS: dict[str, Place] = {
    "part": lambda it: [part(it)],
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

USUAL: Json = {
    "model": "gpt-5",
    "messages": [said("Be kind.", "system"), said([part(HARMLESS)])],
    "temperature": 0.2,
    "stream": True,
    "stop": ["END"],
    "user": "u-17",
    "logprobs": True,
    "tool_choice": "auto",
    "modalities": ["text"],
    "reasoning_effort": "high",
    "service_tier": "auto",
    "logit_bias": {"50256": -100},
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "tools": [],
    "audio": None,
}
"""A call with the usual settings, of which two strings are texts."""


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
