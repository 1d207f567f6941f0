"""Runs the input rails on one message and prints the message, or the refusal."""

import argparse
from pathlib import Path

from nemoguardrails import LLMRails, RailsConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("message", help="what a user says")
asked = parser.parse_args()
rails = LLMRails(RailsConfig.from_path(str(Path(__file__).parent)))
messages = [{"role": "user", "content": asked.message}]
checked = rails.generate(messages=messages, options={"rails": ["input"]})
print(checked.response[0]["content"])
