"""Asks a guarded agent and prints its answer, or why there is none."""

import argparse
import asyncio
import sys

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from agents.exceptions import AgentsException
from guard import attack, privacy
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from nunatak_client import NunatakClientError


class Parrot(Model):
    """Stands for a language model: repeats the last message. Give your agent a real one."""

    async def get_response(self, *_: object, **asked: object) -> ModelResponse:
        """Answer the last message."""
        said = asked["input"][-1]["content"]
        text = ResponseOutputText(text=f"You say: {said}", type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="1", role="assistant", type="message", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: object, **__: object) -> None:
        """Refuse: a parrot streams nothing."""
        raise NotImplementedError


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("message", help="what a user says")
asked = parser.parse_args().message
agent = Agent(name="desk", model=Parrot(), input_guardrails=[attack], output_guardrails=[privacy])
# Traces would leave for a server of OpenAI.
config = RunConfig(tracing_disabled=True)
try:
    print(asyncio.run(Runner.run(agent, asked, run_config=config)).final_output)
except (AgentsException, NunatakClientError) as error:
    sys.exit(f"no answer: {error}")
