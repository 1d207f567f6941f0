"""Tasks of every kind for tests of other servers' protocols, and helpers that send requests."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from doubles.tasks import MAX_LENGTH
from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.methods import QUERY_AND_VALUE, HeadOnly, Lora, Method, TopK

TASKS: dict[str, tuple[HeadKind, Method, tuple[str, ...], ProblemType | None]] = {
    "topic": (HeadKind.SEQUENCE_CLASSIFICATION, TopK(num_layers=1), ("calm", "urgent"), None),
    "stars": (
        HeadKind.SEQUENCE_CLASSIFICATION,
        HeadOnly(),
        ("stars",),
        ProblemType.REGRESSION,
    ),
    "names": (
        HeadKind.TOKEN_CLASSIFICATION,
        Lora(rank=2, alpha=16.0, targets=QUERY_AND_VALUE),
        ("O", "B-X"),
        None,
    ),
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
Ask = Callable[[httpx.AsyncClient], Awaitable[None]]


async def post(client: httpx.AsyncClient, path: str, body: object, status: int = 200) -> Any:  # noqa: ANN401 - JSON
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def native(client: httpx.AsyncClient, task: str, inputs: object, **parameters: object) -> Any:  # noqa: ANN401 - JSON
    body = {"inputs": inputs, "parameters": parameters}
    return (await post(client, f"/v1/tasks/{task}/predict", body))["outputs"]
