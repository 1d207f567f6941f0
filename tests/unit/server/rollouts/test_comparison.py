"""Agreement between a version and its shadow, by kind of head."""

import pytest

from nunatak_contract.enums import HeadKind, Pooling, ProblemType
from nunatak_contract.heads import HeadRecord
from nunatak_server.outputs.entities import AnswerScore, Entity, TokenEntity
from nunatak_server.outputs.outputs import Output
from nunatak_server.outputs.scores import DocumentScore, LabelScore
from nunatak_server.rollouts.comparison import Comparison, compare_outputs


def head(kind: HeadKind, problem: ProblemType | None = None) -> HeadRecord:
    labels = {HeadKind.QUESTION_ANSWERING: (), HeadKind.RANKING: ()}.get(
        kind, ("value",) if problem is ProblemType.REGRESSION else ("a", "b")
    )
    return HeadRecord(
        kind=kind,
        problem_type=problem,
        labels=labels,
        pooling=None if kind.reads_tokens else Pooling.MEAN,
        dense=False,
    )


def labels(**scores: float) -> Output:
    found = [LabelScore(label=label, score=score) for label, score in scores.items()]
    return sorted(found, key=lambda item: -item["score"])


def token(entity: str, start: int, score: float = 0.9) -> Entity:
    return TokenEntity(entity=entity, score=score, index=1, word="x", start=start, end=start + 1)


def compare(
    kind: HeadKind, output: Output, shadow: Output, problem: ProblemType | None = None
) -> Comparison:
    record = head(kind, problem)
    return compare_outputs(record, output, record, shadow, tolerance=0.1)


@pytest.mark.parametrize(
    ("problem", "output", "shadow", "agreement"),
    [
        (ProblemType.SINGLE_LABEL, labels(a=0.6, b=0.4), labels(a=0.9, b=0.1), 1.0),
        (ProblemType.SINGLE_LABEL, labels(a=0.6, b=0.4), labels(a=0.4, b=0.6), 0.0),
        (ProblemType.MULTI_LABEL, labels(a=0.6, b=0.5), labels(a=0.5, b=0.6), 1.0),
        (ProblemType.MULTI_LABEL, labels(a=0.6, b=0.5), labels(a=0.6, b=0.4), 0.0),
        (ProblemType.REGRESSION, labels(value=1.0), labels(score=1.05), 1.0),
        (ProblemType.REGRESSION, labels(value=1.0), labels(value=1.2), 0.0),
    ],
)
def test_labels_agree_by_what_is_chosen_and_values_within_the_tolerance(
    problem: ProblemType, output: Output, shadow: Output, agreement: float
) -> None:
    found = compare(HeadKind.SEQUENCE_CLASSIFICATION, output, shadow, problem)

    assert found.agreement == agreement


def test_labels_apply_by_the_thresholds_of_each_version() -> None:
    own = head(HeadKind.SEQUENCE_CLASSIFICATION, ProblemType.MULTI_LABEL)
    lower = own.model_copy(update={"thresholds": {"b": 0.4}})
    output, shadow = labels(a=0.6, b=0.5), labels(a=0.6, b=0.4)

    assert compare_outputs(own, output, own, shadow, tolerance=0.1).agreement == 0.0
    assert compare_outputs(own, output, lower, shadow, tolerance=0.1).agreement == 1.0


def test_drift_is_label_by_label_and_an_unknown_label_has_score_0() -> None:
    found = compare(
        HeadKind.SEQUENCE_CLASSIFICATION,
        labels(a=0.6, b=0.4),
        labels(a=0.5, c=0.5),
        ProblemType.SINGLE_LABEL,
    )

    assert sorted(found.drifts) == pytest.approx([0.1, 0.4, 0.5])
    assert found.max_drift == pytest.approx(0.5)


def test_token_labels_agree_token_by_token() -> None:
    output = [token("B", 0), token("O", 2), token("O", 4), token("O", 6)]
    shadow = [token("B", 0, 0.7), token("B", 2), token("O", 4)]

    found = compare(HeadKind.TOKEN_CLASSIFICATION, output, shadow)

    assert found.agreement == 2 / 4
    assert found.max_drift == pytest.approx(0.2)


def test_spans_agree_by_their_place() -> None:
    one = AnswerScore(answer="x", score=0.8, start=3, end=4)
    same = AnswerScore(answer="x", score=0.5, start=3, end=4)
    other = AnswerScore(answer="x", score=0.8, start=9, end=10)

    kind = HeadKind.QUESTION_ANSWERING
    assert compare(kind, [one], [same]).agreement == 1.0
    assert compare(kind, [one], [same]).max_drift == pytest.approx(0.3)
    assert compare(kind, [one], [other]).agreement == 0.0
    assert compare(kind, [one], []) == Comparison(agreement=0.0, drifts=())
    assert compare(kind, [], []) == Comparison(agreement=1.0, drifts=())


def test_rankings_agree_by_their_first_document() -> None:
    def ranked(*scores: float) -> Output:
        found = [DocumentScore(index=i, score=score) for i, score in enumerate(scores)]
        return sorted(found, key=lambda item: -item["score"])

    assert compare(HeadKind.RANKING, ranked(0.9, 0.2, 0.1), ranked(0.7, 0.1, 0.2)).agreement == 1.0
    found = compare(HeadKind.RANKING, ranked(0.9, 0.2), ranked(0.3, 0.8))
    assert (found.agreement, sorted(found.drifts)) == (0.0, pytest.approx([0.6, 0.6]))
