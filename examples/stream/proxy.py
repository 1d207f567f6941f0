"""Passes OpenAI's chat completions through, and lets a policy judge each streamed answer."""

import argparse
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from guard import BlockedError, released

LLM = "http://127.0.0.1:4001"
MAX_LINE_BYTES = 1024**2
app = FastAPI()


@app.post("/v1/chat/completions")
async def complete(request: Request) -> StreamingResponse:
    """Stream the judged answer of the LLM."""
    asked: dict[str, Any] = await request.json()
    if asked.get("n") not in (None, 1):
        raise HTTPException(400, f"n must be 1, got {asked['n']}: one text is judged in a stream")
    return StreamingResponse(judged({**asked, "stream": True}), media_type="text/event-stream")


async def judged(asked: dict[str, Any]) -> AsyncGenerator[str]:
    """Yield the events of an answer."""
    finish: str | None = None

    async def texts() -> AsyncGenerator[str]:
        nonlocal finish
        async for choice in choices(asked):
            finish = choice.get("finish_reason") or finish
            yield choice["delta"].get("content") or ""

    try:
        async for text in released(texts()):
            yield chunk(text)
        yield chunk("", finish=finish)
    except BlockedError as error:
        yield chunk(str(error), finish="content_filter")
    yield "data: [DONE]\n\n"


async def choices(asked: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the parts of the LLM's answer."""
    url = f"{LLM}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=60) as llm, llm.stream("POST", url, json=asked) as reply:
        reply.raise_for_status()
        rest = b""
        async for part in reply.aiter_bytes():
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise ValueError(f"the LLM sent a line of more than {MAX_LINE_BYTES} bytes")
            for line in lines:
                field, _, data = line.strip().partition(b":")
                if field == b"data" and data.strip() != b"[DONE]":
                    for choice in json.loads(data)["choices"]:
                        yield choice


def chunk(text: str, *, finish: str | None = None) -> str:
    """Return an event of OpenAI's protocol."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, help="where this server listens")
    uvicorn.run(app, port=parser.parse_args().port, log_level="warning")
