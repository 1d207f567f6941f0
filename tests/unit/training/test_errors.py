from nunatak_training import errors
from nunatak_training.errors import DataError, InvalidRowError, TrainingError


def all_errors(base: type[TrainingError]) -> list[type[TrainingError]]:
    return [base, *(found for child in base.__subclasses__() for found in all_errors(child))]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in all_errors(TrainingError)]

    assert len(set(codes)) == len(codes)


def test_the_tree_in_the_docstring_names_every_error() -> None:
    for error in all_errors(TrainingError):
        assert error.__name__ in str(errors.__doc__)


def test_data_error_starts_with_its_place() -> None:
    error: DataError = InvalidRowError("train.jsonl:17", "'text' is empty")

    assert str(error) == "train.jsonl:17: 'text' is empty"
    assert error.where == "train.jsonl:17"
