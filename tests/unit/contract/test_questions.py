"""Laws of questions and their cards."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from doubles.policies import classifier, tagger
from nunatak_contract.enums import ProblemType, Reads
from nunatak_contract.heads import HeadRecord
from nunatak_contract.questions import QuestionCard, TypedQuestion, find_card_misfit, text_of

TEXTS = st.text(min_size=1, max_size=3).filter(str.strip)
JSON = st.recursive(TEXTS | st.none() | st.booleans() | st.integers(0, 2), st.lists, max_leaves=4)
DESCRIPTIONS = st.none() | TEXTS | st.dictionaries(TEXTS, JSON, max_size=2)
Strategies = dict[str, st.SearchStrategy[Any]]


def documents(members: Strategies) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(members)


QUESTIONS = st.one_of(
    documents({"type": st.just("noul"), "instructions": TEXTS}),
    documents({"type": st.just("noul"), "criteria": documents({"true": TEXTS})}),
    documents(
        {
            "type": st.just("choice"),
            "instructions": st.none() | TEXTS,
            "criteria": st.dictionaries(TEXTS, DESCRIPTIONS, min_size=2, max_size=3),
        }
    ),
    documents(
        {
            "type": st.just("score"),
            "instructions": st.none() | TEXTS,
            "criteria": st.lists(TEXTS, min_size=2, max_size=3),
        }
    ),
)


def read(fields: dict[str, Any]) -> TypedQuestion:
    return TypedQuestion.model_validate(fields)


@given(QUESTIONS, QUESTIONS)
def test_two_questions_have_one_digest_only_if_they_are_equal(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    def plain(fields: dict[str, Any]) -> str:
        is_choice = fields["type"] == "choice"
        options = sorted(fields["criteria"].items()) if is_choice else fields.get("criteria")
        return json.dumps([fields["type"], fields.get("instructions"), options])

    is_same = plain(one) == plain(other)
    assert (read(one).digest == read(other).digest) is is_same


@given(QUESTIONS)
def test_a_question_is_the_same_when_it_is_stored(fields: dict[str, Any]) -> None:
    question = read(fields)
    stored = TypedQuestion.model_validate_json(question.model_dump_json())

    assert (stored, stored.digest) == (question, question.digest)


def test_only_the_order_of_options_does_not_count() -> None:
    options = {"a": None, "b": "B"}
    one = read({"type": "choice", "criteria": options})

    assert one.digest == read({"type": "choice", "criteria": dict([*options.items()][::-1])}).digest
    levels = [read({"type": "score", "criteria": list(it)}).digest for it in ("ab", "ba")]
    assert levels[0] != levels[1]
    texts = [{"value": "true"}, {"value": "x"}]
    values = [{"value": True}, {"value": "x"}]
    assert (
        read({"type": "choice", "options": texts}).digest
        != read({"type": "choice", "options": values}).digest
    )


ONE, OTHER = {"a": 1, "b": 2}, {"b": 2, "a": 1}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "noul", "instructions": ONE}, {"type": "noul", "instructions": OTHER}),
        (
            {"type": "choice", "criteria": {"x": [ONE], "y": None}},
            {"type": "choice", "criteria": {"x": [OTHER], "y": None}},
        ),
        ({"type": "score", "criteria": [ONE, "y"]}, {"type": "score", "criteria": [OTHER, "y"]}),
    ],
)
def test_the_order_of_fields_that_a_model_reads_counts(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert read(one).digest != read(other).digest


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "choice", "criteria": {"a": None, "b": None}, "options": []},
        {"type": "score", "criteria": ["a", "b"], "levels": [{"label": "c"}, {"label": "d"}]},
        {"type": "noul", "criteria": {"true": "a"}, "yes": "b"},
        {"type": "noul", "criteria": {"true": "a"}, "no": "b"},
    ],
)
def test_criteria_overwrite_nothing(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="leave one of them out"):
        read(fields)


def test_a_text_stays_and_json_is_one_line_in_its_order() -> None:
    assert text_of("a\nb") == "a\nb"
    assert text_of({"b": ["\u00e9", None], "a": 1}) == '{"b": ["\u00e9", null], "a": 1}'
    deep: Any = "x"
    for _ in range(32):  # pyrefly: ignore[non-convergent-recursion]
        deep = [deep]
    assert text_of(deep)
    with pytest.raises(ValueError, match="at most 32"):
        text_of([deep])


YES_NO = {"type": "noul", "instructions": "Is it?"}
CHOICE = {"type": "choice", "criteria": {"a": None, "b": None}}
SCORE = {"type": "score", "criteria": ["low", "high"]}
SEVERAL = ProblemType.MULTI_LABEL


def card_of(question: object, **fields: object) -> QuestionCard:
    return QuestionCard.model_validate(
        {"name": "card", "task": "tone", "question": question, **fields}
    )


@pytest.mark.parametrize(
    ("card", "head", "problem"),
    [
        (card_of(YES_NO), classifier("no", "yes"), None),
        (card_of(CHOICE), classifier("b", "a"), None),
        (card_of(CHOICE), classifier("b", "a", problem_type=SEVERAL), None),
        (card_of(SCORE), classifier("low", "high"), None),
        (card_of(SCORE), classifier("x", problem_type=ProblemType.REGRESSION), None),
        (card_of(YES_NO, labels={"x": True}), classifier("x", problem_type=SEVERAL), None),
        (card_of(YES_NO), tagger("O", "yes"), "needs a task of sequence classification"),
        (card_of(YES_NO), classifier("no", "si"), "no label 'yes'"),
        (card_of(CHOICE), classifier("a", "b", "c"), "the label 'c' means no answer"),
        (card_of(CHOICE, labels={"x": "a", "y": "a"}), classifier("x", "y"), "no label means 'b'"),
        (card_of(YES_NO), classifier("no", "yes", problem_type=SEVERAL), "exactly one must mean"),
        (card_of(SCORE), classifier("low", "high", problem_type=SEVERAL), "answer no score"),
        (card_of(YES_NO), classifier("x", problem_type=ProblemType.REGRESSION), "a score alone"),
    ],
)
def test_a_head_answers_a_card_or_there_is_a_reason(
    card: QuestionCard, head: HeadRecord, problem: str | None
) -> None:
    found = find_card_misfit(card, head)

    assert (found is None) is (problem is None)
    assert (problem or "") in (found or "")


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"x": 1}},
        {"labels": {"x": "yes"}},
        {"question": SCORE, "labels": {"x": True}},
        {"question": SCORE, "labels": {"x": 2}},
        {"bounds": (1, 1)},
        {"bounds": (1, float("nan"))},
    ],
)
def test_a_card_with_other_meanings_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        card_of(fields.pop("question", YES_NO), **fields)


def test_a_task_that_reads_pairs_answers_no_question() -> None:
    card, head = card_of(YES_NO), classifier("no", "yes")

    assert find_card_misfit(card, head, reads=Reads.SINGLE) is None
    assert "pairs of texts" in str(find_card_misfit(card, head, reads=Reads.PAIR))
