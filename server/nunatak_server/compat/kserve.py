"""KServe's protocol of version 1: `POST /v1/models/{task}:predict`.

The protocol has no fixed form of predictions. The probabilities of a sequence classification have
the form of KServe's own Hugging Face server with `--return_probabilities`, which NeMo Guardrails
reads: one object of labels. Other tasks answer as the native routes do.
"""

from typing import Any, cast

from fastapi import Request, Response

from nunatak_contract.enums import HeadKind, ProblemType
from nunatak_contract.requests import Item, Message, Some
from nunatak_server.compat.failures import router_of
from nunatak_server.http.endpoints import Routed, ask_task
from nunatak_server.http.replies import inputs_of, reply
from nunatak_server.outputs.scores import LabelScore
from nunatak_server.predict.types import TaskPrediction


class KServeRequest(Message):
    """Inputs for one task."""

    instances: Some[Item]


class KServeResponse(Message):
    """One prediction for each input, in order."""

    predictions: list[Any]


router = router_of("KServe 1")


@router.ask("/v1/models/{task}:predict", answer=KServeResponse)
async def predict(request: Request, handling: Routed, task: str, body: KServeRequest) -> Response:
    """Ask a task; `{task}` is `name` or `name@alias`."""
    result, headers = await ask_task(request, handling, task, inputs_of(body.instances))
    return reply({"predictions": _predictions(result)}, headers=headers)


def _predictions(result: TaskPrediction) -> list[Any]:
    if result.head is not HeadKind.SEQUENCE_CLASSIFICATION:
        return list(result.outputs)
    rows = cast("list[list[LabelScore]]", result.outputs)
    if result.problem_type is ProblemType.REGRESSION:
        return [row[0]["score"] for row in rows]
    return [{it["label"]: it["score"] for it in row} for row in rows]
