"""Answers from this process: the server's own engine, without HTTP."""

from collections.abc import Sequence

from nunatak_cli.registries import existing_location
from nunatak_cli.views.answers import Answer
from nunatak_model import DEFAULT_BACKBONE, TextInput, load_backbone
from nunatak_registry import Registry
from nunatak_server.local import LocalPredictor
from nunatak_server.prediction import TaskFailure, TaskPrediction


def ask_here(
    source: TextInput, tasks: Sequence[str], *, registry: str | None, backbone: str | None
) -> list[Answer]:
    """Load the tasks and ask them."""
    with Registry.open(existing_location(registry)) as opened:
        loaded = load_backbone(backbone or DEFAULT_BACKBONE)
        with LocalPredictor(opened, loaded) as predictor:
            prediction = predictor.predict([source], tasks)
    return [_answer(result) for result in prediction.results]


def _answer(result: TaskPrediction | TaskFailure) -> Answer:
    if isinstance(result, TaskFailure):
        return Answer(
            reference=result.reference,
            version=None,
            scores=(),
            error_code=result.error.code,
            error_message=str(result.error),
        )
    (scores,) = result.outputs
    return Answer(
        reference=result.reference,
        version=result.version,
        scores=tuple((score["label"], score["score"]) for score in scores),
    )
