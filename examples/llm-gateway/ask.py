"""Sends one prompt through the gateway and prints the LLM's answer, or why the call is blocked."""

import argparse
import os

from openai import BadRequestError, OpenAI, OpenAIError

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prompt", help="what the LLM is asked")
asked = parser.parse_args()
key = os.environ.get("LITELLM_MASTER_KEY", "none")
client = OpenAI(base_url="http://127.0.0.1:4000", api_key=key, max_retries=0)
try:
    answer = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": asked.prompt}]
    )
    print(answer.choices[0].message.content)
except BadRequestError as error:
    print(f"blocked: {error.message}")
except OpenAIError as error:
    parser.error(f"no answer: {error}; the key of a gateway is LITELLM_MASTER_KEY")
