"""Answers from a server."""

from collections.abc import Sequence

from nunatak_cli.views.answers import Answer
from nunatak_client import Client, TaskResult, TextInput


def ask_server(server: str, source: TextInput, tasks: Sequence[str]) -> list[Answer]:
    """Ask every task in one request."""
    with Client(server) as client:
        fan_out = client.predict_many(source, tasks)
    return [_answer(result) for result in fan_out.results]


def _answer(result: TaskResult) -> Answer:
    problem = result.error
    if problem is not None:
        return Answer(
            reference=result.reference,
            version=None,
            scores=(),
            error_code=problem.code,
            error_message=problem.detail or problem.title,
        )
    (scores,) = result.require()
    return Answer(
        reference=result.reference,
        version=result.version,
        scores=tuple((score.label, score.score) for score in scores),
    )
