"""Prints what the output rail of NeMo Guardrails releases of a streamed answer."""

import asyncio
import sys
from pathlib import Path

from nemoguardrails import LLMRails, RailsConfig


async def main() -> None:
    """Print each released part of the answer on its own line."""
    rails = LLMRails(RailsConfig.from_path(str(Path(__file__).with_name("rails.yml"))))
    messages = [{"role": "user", "content": sys.argv[1]}]
    async for text in rails.stream_async(messages=messages):
        print(text, end="", flush=True)


asyncio.run(main())
