"""Errors of training that code catches; all others are a `NunatakError` with another code."""

from nunatak_contract.errors import NunatakError


def too_few(where: str, problem: str) -> NunatakError:
    return NunatakError("too_few_examples", where=where, problem=problem)


class InvalidRecipeError(NunatakError):
    """Settings that contradict each other or the data."""

    def __init__(self, problem: str) -> None:
        super().__init__("invalid_recipe", problem=problem)


class TrainingDivergedError(NunatakError):
    """The loss or a gradient became infinite or NaN; nothing was published."""

    def __init__(self, step: int, learning_rate: float) -> None:
        super().__init__("training_diverged", step=step, learning_rate=learning_rate)
