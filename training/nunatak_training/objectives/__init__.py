"""Objectives: the parts of each kind of task in the common loop."""

from nunatak_training.data import TaskData
from nunatak_training.kinds import TaskKind
from nunatak_training.objectives.base import Objective
from nunatak_training.objectives.texts import (
    OUTPUT_BIAS,
    OUTPUT_WEIGHT,
    MultiLabel,
    Ranking,
    Regression,
    SingleLabel,
)
from nunatak_training.objectives.windows import Answering, Tagging

__all__ = ["OUTPUT_BIAS", "OUTPUT_WEIGHT", "Objective", "objective_of"]


def objective_of(
    data: TaskData, *, positive_label: str | None = None, temperature: float = 1.0
) -> Objective:
    """Return the objective of a task; `Metric.F1` scores `positive_label`.

    `temperature` softens the probabilities of a teacher.
    """
    match data.kind:
        case TaskKind.SINGLE_LABEL:
            return SingleLabel(data, positive_label, temperature)
        case TaskKind.MULTI_LABEL:
            return MultiLabel(data, positive_label, temperature)
        case TaskKind.REGRESSION:
            return Regression(data)
        case TaskKind.TOKEN_CLASSIFICATION:
            return Tagging(data)
        case TaskKind.QUESTION_ANSWERING:
            return Answering(data)
        case TaskKind.RANKING:
            return Ranking(data)
