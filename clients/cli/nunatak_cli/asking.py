"""Answers from a server."""

from collections.abc import Iterator, Sequence

from nunatak_cli.views.answers import Answer, Item
from nunatak_client import (
    Classification,
    Client,
    Entity,
    Input,
    Parameters,
    Predicted,
    QuestionAnswering,
    RankingOutputs,
    TaskResult,
    TokenClassification,
)


def ask_server(
    server: str, source: Input, tasks: Sequence[str], *, parameters: Parameters
) -> list[Answer]:
    """Ask every task in one request."""
    with Client(server) as client:
        fan_out = client.predict_many(source, tasks, parameters=parameters)
    return [_answer(result) for result in fan_out.results]


def stream_server(
    server: str, source: Input, tasks: Sequence[str], *, parameters: Parameters
) -> Iterator[Answer]:
    """Ask every task in one request, and yield the answers as they come."""
    with Client(server) as client:
        for result in client.stream(source, tasks, parameters=parameters):
            yield _answer(result)


def _answer(result: TaskResult) -> Answer:
    problem = result.error
    if problem is not None:
        return Answer(
            reference=result.reference,
            version=None,
            items=(),
            error_code=problem.code,
            error_message=problem.detail or problem.title,
        )
    return Answer(
        reference=result.reference,
        version=result.version,
        items=_items(result.require()),
        num_tokens=sum(result.tokens) if result.tokens else None,
        is_truncated=result.is_truncated,
    )


def _items(predicted: Predicted) -> tuple[Item, ...]:
    """What the task says about the one input, as the server wrote it."""
    match predicted:
        case TokenClassification(outputs=outputs):
            return tuple(_entity(entity) for entity in outputs[0])
        case Classification() | QuestionAnswering() | RankingOutputs():
            return tuple(item.model_dump(exclude_none=True) for item in predicted.outputs[0])


def _entity(entity: Entity) -> Item:
    is_group = entity.index is None
    place = entity.model_dump(exclude={"label"}, exclude_none=True)
    return {"entity_group" if is_group else "entity": entity.label, **place}
