"""Guardrails of the OpenAI Agents SDK that ask policies. Without a verdict, the run fails."""

from typing import Any

from agents import Agent, GuardrailFunctionOutput, RunContextWrapper, TResponseInputItem
from agents import input_guardrail as guards_input
from agents import output_guardrail as guards_output

from nunatak_client import AsyncClient

NUNATAK = "http://127.0.0.1:8080"
KEYS = ("content", "text", "output", "arguments", "summary", "refusal", "error")
"""What holds the text of an item. An item without any, such as an image, fails."""


def text_of(item: object) -> str:
    """Return all text of an input as one, because parts alone could hide an attack."""
    match item:
        case str():
            return item
        case list():
            return "\n".join(map(text_of, item))
        case dict():
            held = [item[key] for key in KEYS if item.get(key) is not None]
            return text_of(held or item[KEYS[0]])
    raise TypeError(f"expected a text, a list or an item, got {type(item).__name__}")


async def judged(policy: str, text: str) -> GuardrailFunctionOutput:
    """Stop at a block, and at a mask, because a guardrail cannot change a text."""
    async with AsyncClient(NUNATAK) as client:
        verdict = await client.judge(policy, text)
    passes = verdict.action in {"allow", "flag"}
    return GuardrailFunctionOutput(output_info=verdict.message, tripwire_triggered=not passes)


@guards_input(run_in_parallel=False)
async def attack(
    _: RunContextWrapper[Any], __: Agent[Any], given: str | list[TResponseInputItem]
) -> GuardrailFunctionOutput:
    """Stop an attack before the model sees it."""
    return await judged("rail", text_of(given))


@guards_output
async def privacy(
    _: RunContextWrapper[Any], __: Agent[Any], said: object
) -> GuardrailFunctionOutput:
    """Stop an answer with personal data."""
    return await judged("privacy", str(said))
