"""Runs the input rails on one message and prints the message, or the refusal."""

import sys
from pathlib import Path

from nemoguardrails import LLMRails, RailsConfig

rails = LLMRails(RailsConfig.from_path(str(Path(__file__).parent)))
messages = [{"role": "user", "content": sys.argv[1]}]
checked = rails.generate(messages=messages, options={"rails": ["input"]})
print(checked.response[0]["content"])
