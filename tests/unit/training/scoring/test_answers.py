import pytest

from nunatak_training.scoring.answers import exact_match, overlap_f1


@pytest.mark.parametrize(
    ("predicted", "expected", "exact", "f1"),
    [
        pytest.param("The Cat.", ["cat"], 1.0, 1.0, id="case-article-punctuation"),
        pytest.param("black cat", ["the cat"], 0.0, 2 / 3, id="half-right"),
        pytest.param("cat cat", ["cat"], 0.0, 2 / 3, id="repetition-counts-once"),
        pytest.param("dog", ["cat", "a dog"], 1.0, 1.0, id="best-of-several"),
        pytest.param("dog", ["cat"], 0.0, 0.0, id="wrong"),
        pytest.param("", [], 1.0, 1.0, id="rightly-none"),
        pytest.param("cat", [], 0.0, 0.0, id="none-was-right"),
        pytest.param("", ["cat"], 0.0, 0.0, id="none-was-wrong"),
    ],
)
def test_answers_are_compared_as_for_squad(
    predicted: str, expected: list[str], exact: float, f1: float
) -> None:
    assert exact_match(predicted, expected) == exact
    assert overlap_f1(predicted, expected) == pytest.approx(f1)
