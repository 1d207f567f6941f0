"""Guardrails of the OpenAI Agents SDK that ask policies. Without a verdict, the run fails."""

from typing import Any

from agents import Agent, GuardrailFunctionOutput, RunContextWrapper, TResponseInputItem
from agents import input_guardrail as guards_input
from agents import output_guardrail as guards_output
from pydantic_core import to_jsonable_python

from nunatak_client import AsyncClient

NUNATAK = "http://127.0.0.1:8080"


async def judged(policy: str, said: dict[str, Any]) -> GuardrailFunctionOutput:
    """Stop at a block, and at a mask, because a guardrail cannot change a text."""
    async with AsyncClient(NUNATAK) as client:
        verdict = await client.judge(policy, messages=[said])
    passes = verdict.action in {"allow", "flag"}
    return GuardrailFunctionOutput(output_info=verdict.message, tripwire_triggered=not passes)


@guards_input(run_in_parallel=False)
async def attack(
    _: RunContextWrapper[Any], __: Agent[Any], given: str | list[TResponseInputItem]
) -> GuardrailFunctionOutput:
    """Stop an attack before the model sees it."""
    return await judged("rail", {"input": given})


@guards_output
async def privacy(
    _: RunContextWrapper[Any], __: Agent[Any], said: object
) -> GuardrailFunctionOutput:
    """Stop an answer with personal data."""
    # Everything counts as text in `json`, also the names and numbers of an answer with a form.
    return await judged("privacy", {"json": to_jsonable_python(said)})
