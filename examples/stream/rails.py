"""Prints what the output rail of NeMo Guardrails releases of a streamed answer."""

import argparse
import asyncio
from pathlib import Path

from nemoguardrails import LLMRails, RailsConfig


async def main(message: str) -> None:
    """Print each released part of the answer on its own line."""
    rails = LLMRails(RailsConfig.from_path(str(Path(__file__).with_name("rails.yml"))))
    messages = [{"role": "user", "content": message}]
    async for text in rails.stream_async(messages=messages):
        print(text, end="", flush=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("message", help="what a user says")
asyncio.run(main(parser.parse_args().message))
