"""A guardrail of LiteLLM's proxy that sends a call whole, so that a policy judges all of it."""

import os
from typing import Any

import httpx
from fastapi import HTTPException
from litellm.integrations.custom_guardrail import CustomGuardrail

# The route of Portkey's webhook takes a call as the LLM gets it, and gives it back masked.
POLICY = "http://127.0.0.1:8080/v1/verdicts/guard/portkey"
KEY = os.environ.get("NUNATAK_API_KEY")
CLIENT = httpx.AsyncClient(timeout=10, headers={"authorization": f"Bearer {KEY}"} if KEY else {})
OWN = {
    "litellm_call_id",
    "litellm_logging_obj",
    "litellm_metadata",
    "metadata",
    "proxy_server_request",
    "secret_fields",
}
"""What LiteLLM itself adds to a call, and keeps from the LLM."""


class CallGuard(CustomGuardrail):
    """Blocks a call that the policy blocks or cannot judge, and masks texts where they stand."""

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,  # noqa: ANN401 - LiteLLM's own
        cache: Any,  # noqa: ANN401
        data: dict[str, Any],
        call_type: str,
    ) -> dict[str, Any]:
        """Return the call, with its texts masked.

        Raises:
            HTTPException: the policy blocks the call, or there is no verdict.
        """
        call = {name: it for name, it in data.items() if name not in OWN}
        event = {"eventType": "beforeRequestHook", "request": {"json": call}}
        try:
            reply = await CLIENT.post(POLICY, json=event)
            told = reply.raise_for_status().json()
        except (httpx.HTTPError, TypeError, ValueError) as error:
            raise HTTPException(400, f"there is no verdict: {error}") from error
        if told["verdict"] is not True:
            raise HTTPException(400, told["data"]["reason"])
        masked = told.get("transformedData")
        own = {name: it for name, it in data.items() if name in OWN}
        return {**own, **masked["request"]["json"]} if masked else data
