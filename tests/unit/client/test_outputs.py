"""Laws of typed results: each kind of task has its own class of result."""

import json

import pytest
from pydantic import JsonValue

from nunatak_client import (
    Answer,
    ApiError,
    Classification,
    Entity,
    HeadKind,
    InvalidResponseError,
    Prediction,
    ProblemType,
    RankedDocument,
    Score,
    TaskResult,
    WrongHeadError,
)
from nunatak_client.replies import Reply, read_fan_out, read_prediction

PLACE: dict[str, JsonValue] = {"score": 0.9, "word": "ann", "start": 0, "end": 3}
OUTPUTS: dict[HeadKind, list[JsonValue]] = {
    HeadKind.SEQUENCE_CLASSIFICATION: [{"label": "calm", "score": 0.9}],
    HeadKind.TOKEN_CLASSIFICATION: [
        {"entity": "B-PER", "index": 1, **PLACE},
        {"entity_group": "PER", **PLACE},
    ],
    HeadKind.QUESTION_ANSWERING: [{"answer": "ann", "score": 0.9, "start": 0, "end": 3}],
    HeadKind.RANKING: [{"index": 1, "score": 0.9, "document": "ann"}, {"index": 0, "score": 0.1}],
}


def reply(**body: object) -> Reply:
    return Reply(status=200, headers={}, content=json.dumps(body).encode())


def read_body(num_inputs: int | None = None, **body: object) -> Prediction:
    return read_prediction(reply(task="t", version=1, **body), num_inputs=num_inputs)


def read(head: HeadKind, outputs: JsonValue) -> Prediction:
    return read_body(head=head, outputs=outputs, predicted="calm")


def test_every_kind_reads_as_its_own_class() -> None:
    found = {head: read(head, outputs) for head, outputs in OUTPUTS.items()}

    assert all(prediction.head is head for head, prediction in found.items())
    assert found[HeadKind.SEQUENCE_CLASSIFICATION].best == Score(label="calm", score=0.9)
    token, group = found[HeadKind.TOKEN_CLASSIFICATION].entities
    assert token == Entity(label="B-PER", score=0.9, word="ann", start=0, end=3, index=1)
    assert (group.label, group.index) == ("PER", None)
    (answer,) = found[HeadKind.QUESTION_ANSWERING].answers
    assert answer == Answer(answer="ann", score=0.9, start=0, end=3)
    assert found[HeadKind.RANKING].ranking == (
        RankedDocument(index=1, score=0.9, document="ann"),
        RankedDocument(index=0, score=0.1),
    )


PARTS = ["best", "scores", "labels", "predicted", "entities", "answers", "ranking"]


@pytest.mark.parametrize("head", HeadKind)
@pytest.mark.parametrize("name", PARTS)
def test_what_a_kind_does_not_give_is_refused_by_name(head: HeadKind, name: str) -> None:
    owners = {
        "entities": HeadKind.TOKEN_CLASSIFICATION,
        "answers": HeadKind.QUESTION_ANSWERING,
        "ranking": HeadKind.RANKING,
    }
    owner = owners.get(name, HeadKind.SEQUENCE_CLASSIFICATION)
    prediction = read(head, OUTPUTS[head])

    if head is owner:
        assert getattr(prediction, name)
    else:
        with pytest.raises(WrongHeadError, match=owner) as caught:
            getattr(prediction, name)
        assert getattr(prediction, str(caught.value.fields["instead"]))


@pytest.mark.parametrize("name", PARTS)
def test_a_failed_result_raises_its_error_whatever_is_read(name: str) -> None:
    problem = {"code": "task_unhealthy", "status": 503, "detail": "t/1 is ill"}
    answered = reply(results=[{"reference": "t", "error": problem}])

    failed = read_fan_out(answered, num_inputs=2, tasks=["t"])["t"]

    assert isinstance(failed, TaskResult)
    assert (failed.task, failed.version, failed.outputs, failed.head_outputs) == (None,) * 4
    assert (failed.tokens, failed.truncated, failed.unread) == ((), (), ())
    assert not failed.is_truncated
    with pytest.raises(ApiError, match="t/1 is ill") as caught:
        getattr(failed, name)
    assert caught.value.code == "task_unhealthy"


def test_a_text_may_hold_no_entities_and_a_context_no_answers() -> None:
    assert read(HeadKind.TOKEN_CLASSIFICATION, []).entities == ()
    assert read(HeadKind.QUESTION_ANSWERING, []).answers == ()


@pytest.mark.parametrize("head", [HeadKind.SEQUENCE_CLASSIFICATION, HeadKind.RANKING])
def test_a_text_has_labels_and_a_query_documents(head: HeadKind) -> None:
    with pytest.raises(InvalidResponseError):
        read(head, [])


def test_an_unknown_kind_is_not_guessed() -> None:
    with pytest.raises(InvalidResponseError):
        read_body(head="translation", outputs=[])


@pytest.mark.parametrize(("num_inputs", "told"), [(None, (9, True)), (2, ([9, 3], [True, False]))])
def test_what_was_read_of_each_input_is_reported_per_input(
    num_inputs: int | None, told: tuple[object, object]
) -> None:
    labels = [{"label": "calm", "score": 1.0}]
    outputs: object = labels if num_inputs is None else [labels] * num_inputs

    prediction = read_body(num_inputs, outputs=outputs, tokens=told[0], truncated=told[1])

    assert prediction.tokens == ((9,) if num_inputs is None else (9, 3))
    assert prediction.truncated == ((True,) if num_inputs is None else (True, False))
    assert prediction.is_truncated
    assert read_body(num_inputs, outputs=outputs).tokens == ()


PREDICTED: dict[ProblemType, tuple[JsonValue, object]] = {
    ProblemType.SINGLE_LABEL: ("calm", "calm"),
    ProblemType.MULTI_LABEL: (["urgent", "calm"], ("urgent", "calm")),
    ProblemType.REGRESSION: (4, 4.0),
}


@pytest.mark.parametrize("problem", ProblemType)
def test_what_is_predicted_has_one_entry_per_input_also_for_one(problem: ProblemType) -> None:
    sent, expected = PREDICTED[problem]
    labels = OUTPUTS[HeadKind.SEQUENCE_CLASSIFICATION]

    one = read_body(problem_type=problem, outputs=labels, predicted=sent)
    two = read_body(2, problem_type=problem, outputs=[labels] * 2, predicted=[sent] * 2)

    assert one.predicted == (expected,)
    assert two.predicted == (expected, expected)
    assert isinstance(one.head_outputs, Classification)
    assert one.head_outputs.problem_type is problem
