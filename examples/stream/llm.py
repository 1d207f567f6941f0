"""A server of OpenAI's protocol with a fixed answer: whole, or streamed at 30 words a second."""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

ANSWER = (
    "Of course. Our support team answers within a day. You can write to Maria Keller at "
    "maria.keller@example.org or call 555 0142 in the morning. She works in the office in Oslo. "
    "Please have the number of your order at hand, and the day on which the parcel was sent. "
) * 3
app = FastAPI()


@app.post("/v1/chat/completions")
async def complete(request: Request) -> Response:
    """Answer any question."""
    if not (await request.json()).get("stream"):
        said = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        return JSONResponse({"object": "chat.completion", "choices": [choice]})

    async def events() -> AsyncGenerator[str]:
        for word in ANSWER.split(" "):
            chunk = {"choices": [{"index": 0, "delta": {"content": f"{word} "}}]}
            yield f"data: {json.dumps(chunk)}\n\n"
            await asyncio.sleep(1 / 30)
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield f"data: {json.dumps(last)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, help="where this server listens")
    uvicorn.run(app, port=parser.parse_args().port, log_level="warning")
