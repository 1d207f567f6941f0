"""Passes OpenAI's chat completions through, and lets a policy judge each streamed answer."""

import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from nunatak_client import AsyncClient, NunatakClientError

LLM, NUNATAK, POLICY = "http://127.0.0.1:4001", "http://127.0.0.1:8080", "answers"
BLOCKED = "[The answer was blocked.]"
app = FastAPI()


@app.post("/v1/chat/completions")
async def complete(request: Request) -> StreamingResponse:
    """Stream the judged answer of the LLM."""
    asked: dict[str, Any] = await request.json()
    return StreamingResponse(judged({**asked, "stream": True}), media_type="text/event-stream")


async def judged(asked: dict[str, Any]) -> AsyncGenerator[str]:
    """Yield the events of an answer; an error ends the answer like a block."""
    try:
        async with AsyncClient(NUNATAK) as guard:
            async for event in guard.judge_stream(POLICY, answer(asked)):
                if event.text:
                    yield chunk(event.text)
                if event.final and event.verdict and event.verdict.action == "block":
                    yield chunk(event.verdict.message or BLOCKED, finish="content_filter")
    except NunatakClientError:
        yield chunk(BLOCKED, finish="content_filter")
    yield "data: [DONE]\n\n"


async def answer(asked: dict[str, Any]) -> AsyncGenerator[str]:
    """Yield the texts of the LLM's answer."""
    url = f"{LLM}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=60) as llm, llm.stream("POST", url, json=asked) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                yield json.loads(data)["choices"][0]["delta"].get("content") or ""


def chunk(text: str, *, finish: str | None = None) -> str:
    """Return an event of OpenAI's protocol."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
