"""Sends one prompt through the gateway and prints the LLM's answer, or why the call is blocked."""

import os
import sys

from openai import BadRequestError, OpenAI

key = os.environ["LITELLM_MASTER_KEY"]
client = OpenAI(base_url="http://127.0.0.1:4000", api_key=key, max_retries=0)
try:
    answer = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": sys.argv[1]}]
    )
    print(answer.choices[0].message.content)
except BadRequestError as error:
    print(f"blocked: {error.message}")
