"""Answers from this process: the server's own engine, without HTTP."""

from collections.abc import Sequence

from pydantic import JsonValue, TypeAdapter

from nunatak_cli.registries import existing_location
from nunatak_cli.views.answers import Answer
from nunatak_client import Input, Parameters, Query, Question
from nunatak_contract import requests
from nunatak_model import DEFAULT_BACKBONE, load_backbone
from nunatak_registry import Registry
from nunatak_server import inputs
from nunatak_server.http.requests import options_of
from nunatak_server.local import LocalPredictor
from nunatak_server.predict.types import TaskFailure, TaskPrediction


def ask_here(
    source: Input,
    tasks: Sequence[str],
    *,
    parameters: Parameters,
    registry: str | None,
    backbone: str | None,
) -> list[Answer]:
    """Load the tasks and ask them."""
    options = options_of(requests.Parameters.model_validate(parameters.wire()))
    with Registry.open(existing_location(registry)) as opened:
        loaded = load_backbone(backbone or DEFAULT_BACKBONE)
        with LocalPredictor(opened, loaded) as predictor:
            prediction = predictor.predict([_input(source)], tasks, options=options)
    return [_answer(result) for result in prediction.results]


def _input(source: Input) -> inputs.TaskInput:
    match source:
        case Question():
            return inputs.Question(question=source.question, context=source.context)
        case Query():
            return inputs.Query(query=source.query, documents=tuple(source.documents))
        case _:
            return source


def _answer(result: TaskPrediction | TaskFailure) -> Answer:
    if isinstance(result, TaskFailure):
        return Answer(
            reference=result.reference,
            version=None,
            items=(),
            error_code=result.error.code,
            error_message=str(result.error),
        )
    items = TypeAdapter(tuple[dict[str, JsonValue], ...])
    return Answer(
        reference=result.reference,
        version=result.version,
        items=items.validate_python(result.outputs[0]),
        num_tokens=result.extents[0].num_tokens,
        is_truncated=result.extents[0].is_cut,
    )
