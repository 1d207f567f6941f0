"""Laws of entities and answers."""

import pytest

from nunatak_training.scoring.scores import Entity, entities_in, exact_match, overlap_f1, uses_bio


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        pytest.param("O O", [], id="none"),
        pytest.param("B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)], id="two"),
        pytest.param("B-A B-A", [("A", 0, 1), ("A", 1, 2)], id="neighbours"),
        pytest.param("O I-A I-A", [("A", 1, 3)], id="begun-by-i"),
        pytest.param("B-A I-B", [("A", 0, 1), ("B", 1, 2)], id="another-type-begins"),
        pytest.param("I-A O I-A", [("A", 0, 1), ("A", 2, 3)], id="a-gap-ends"),
        pytest.param("B-A-x I-A-x", [("A-x", 0, 2)], id="type-with-a-dash"),
        pytest.param("B I NOUN", [], id="no-types"),
    ],
)
def test_entities_are_read_as_conlleval_reads_them(tags: str, entities: list[Entity]) -> None:
    assert entities_in(tags.split()) == entities


def test_tags_of_words_are_no_entities() -> None:
    assert uses_bio(["B-PER", "O"])
    assert not uses_bio(["NOUN", "VERB", "O"])


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
