"""Tasks of every kind for tests of other servers' protocols, and helpers that send requests."""

from typing import Any

import httpx
import pytest

from doubles.tasks import MAX_LENGTH
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK

TASKS: dict[str, tuple[HeadKind, Method, tuple[str, ...], ProblemType | None]] = {
    "topic": (HeadKind.SEQUENCE_CLASSIFICATION, TopK(num_layers=1), ("calm", "urgent"), None),
    "stars": (HeadKind.SEQUENCE_CLASSIFICATION, HeadOnly(), ("stars",), ProblemType.REGRESSION),
    "names": (
        HeadKind.TOKEN_CLASSIFICATION,
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        ("O", "B-X"),
        None,
    ),
    # Without "O", every token is in a span.
    "people": (HeadKind.TOKEN_CLASSIFICATION, TopK(num_layers=1), ("O", "B-X", "I-X"), None),
    "spans": (HeadKind.TOKEN_CLASSIFICATION, TopK(num_layers=1), ("B-X", "I-X"), None),
    "answers": (HeadKind.QUESTION_ANSWERING, TopK(num_layers=2), (), None),
    "ranks": (
        HeadKind.RANKING,
        Lora(rank=2, first_layer=2, alpha=16.0, targets=QUERY_AND_VALUE),
        (),
        None,
    ),
}
TEXT, OTHER = "ann met bob in oslo.", "where?"
TOO_LONG = "a " * 2 * MAX_LENGTH
DOCUMENTS = ["ann", "bob and cy", "nobody"]
QUERY = {"query": "who came?", "texts": DOCUMENTS}
SCORE = pytest.approx


def litellm(*texts: str, **changes: object) -> dict[str, object]:
    """The body of LiteLLM, with all of its fields."""
    return {
        "input_type": "request",
        "litellm_call_id": "c-1",
        "litellm_trace_id": None,
        "structured_messages": [{"role": "user", "content": it} for it in texts],
        "images": None,
        "tools": None,
        "texts": list(texts),
        "request_data": {"user_api_key_alias": "ann"},
        "request_headers": {"host": "[present]"},
        "litellm_version": "1.109.1",
        "additional_provider_specific_params": {},
        "tool_calls": None,
        "model": "gpt",
        **changes,
    }


def portkey(text: str, event: str = "beforeRequestHook", **changes: object) -> dict[str, object]:
    """The body of Portkey's webhook."""
    content = {"messages": [{"role": "system", "content": "Be kind."}, {"content": text}]}
    side = {"json": content, "text": text, "isStreamingRequest": False, "isTransformed": False}
    return {
        "request": side,
        "response": {"json": {}, "text": "", "statusCode": None},
        "provider": "openai",
        "requestType": "chatComplete",
        "metadata": {"user": "ann"},
        "eventType": event,
        **changes,
    }


def detector(text: str, path: str) -> dict[str, object]:
    """The body of the FMS Guardrails Orchestrator for one of its two routes."""
    if path.endswith("/contents"):
        return {"contents": [text], "detector_params": {}}
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "tools": [], "detector_params": {}}


def tensor(name: str, *texts: str, **more: object) -> dict[str, Any]:
    """An input of the Open Inference Protocol."""
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": [*texts], **more}


DETECTORS = ("/api/v1/text/contents", "/api/v1/text/chat")
"""The routes of detectors; the header `detector-id` names the policy."""


async def post(client: httpx.AsyncClient, path: str, body: object, status: int = 200) -> Any:  # noqa: ANN401 - JSON
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def native(client: httpx.AsyncClient, task: str, inputs: object, **parameters: object) -> Any:  # noqa: ANN401 - JSON
    body = {"inputs": inputs, "parameters": parameters}
    return (await post(client, f"/v1/tasks/{task}/predict", body))["outputs"]


def outputs(address: str, task: str, inputs: object, **parameters: object) -> Any:  # noqa: ANN401 - JSON
    """Ask a real server as `native` asks an application."""
    body = {"inputs": inputs, "parameters": parameters}
    return httpx.post(f"{address}/v1/tasks/{task}/predict", json=body).json()["outputs"]


async def counted(client: httpx.AsyncClient, name: str) -> float:
    """The sum of the samples of `/metrics` whose lines begin like this."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(it.rpartition(" ")[2]) for it in lines if it.startswith(name))
