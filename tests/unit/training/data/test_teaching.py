"""Laws of the probabilities of a teacher: checked, complete, asked once, and labels follow."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from doubles.examples import write_jsonl
from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_model import TextInput
from nunatak_training.data import LabelSet, RowFormat, TaskData, load_task_data
from nunatak_training.data.examples import Teacher
from nunatak_training.kinds import TaskKind

TAUGHT = RowFormat(is_taught=True)
GOOD: list[dict[str, object]] = [
    {"text": f"text {number}", "probabilities": {"no": number / 20, "yes": 1 - number / 20}}
    for number in range(20)
]


def taught(rows: object, kind: TaskKind | None = None, teacher: Teacher | None = None) -> TaskData:
    return load_task_data(rows, kind=kind, spelt=TAUGHT, teacher=teacher)  # pyrefly: ignore[bad-argument-type]


def labels_by_text(data: TaskData) -> dict[str, object]:
    return {it.text: it.label for it in (*data.train.examples, *data.dev.examples)}


def asked_by(
    log: list[TextInput], answers: Mapping[str, object] | None = None, **changes: object
) -> Teacher:
    """A teacher that says yes to texts that end in 1 to 9, and knows some answers by text."""

    def ask(inputs: Sequence[TextInput]) -> Iterator[object]:
        for text in inputs:
            log.append(text)
            yes = 0.25 if str(text).endswith("0") else 0.75
            yield (answers or {}).get(str(text), {"no": 1 - yes, "yes": yes})

    fields = {
        "name": "big/1", "digest": "d" * 64, "kind": TaskKind.SINGLE_LABEL, "labels": ("yes", "no"),
        "ask": ask, **changes,
    }  # fmt: skip
    return Teacher(**fields)  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"probabilities": {"no": math.nan, "yes": 1.0}}, "'no' must be 0 to 1, got nothing"),
        ({"probabilities": {"no": -0.1, "yes": 1.1}}, "'no' must be 0 to 1, got -0.1"),
        ({"probabilities": {"no": math.inf, "yes": 0.0}}, "Infinity is no number of JSON"),
        ({"probabilities": {"no": True, "yes": 0.0}}, "'no' must be 0 to 1, got True"),
        ({"probabilities": {"no": None, "yes": 1.0}}, "'no' must be 0 to 1, got nothing"),
        ({"probabilities": {"no": "1", "yes": 0.0}}, "'no' must be 0 to 1, got str"),
        ({"probabilities": {"no": 0.5, "yes": 0.4}}, "must sum to 1, got 0.9; set kind to multi"),
        ({"probabilities": {"no": 0.5, "yes": 0.52}}, "must sum to 1, got 1.02"),
        ({"probabilities": {"no": 0.2, "maybe": 0.8}}, "label 'maybe' is unknown"),
        ({"probabilities": {"no": 0.2, "yes": 0.3, "maybe": 0.5}}, "label 'maybe' is unknown"),
        ({"probabilities": {"yes": 1.0}}, "the probability of label 'no' is missing"),
        ({"label": "maybe", "probabilities": {"no": 0.2, "yes": 0.8}}, "label 'maybe' is unknown"),
        ({"probabilities": {}}, "must be an object of numbers by label, got an empty one"),
        ({"probabilities": '{"no": 1.0}'}, "got str; CSV and TSV hold no objects"),
        ({"probabilities": {"": 0.5, "no": 0.5}}, "must have 1 to 200 characters, got 0"),
        ({"probabilities": {"a" * 201: 0.5, "no": 0.5}}, "must have 1 to 200 characters, got 201"),
        ({"probabilities": {"\ud800": 0.5, "no": 0.5}}, "holds a lone surrogate"),
        ({"probabilities": [0.2, 0.8]}, "must be an object of numbers by label, got list"),
        ({"probabilities": None}, "got nothing"),
        ({"text": " ", "probabilities": {"no": 0.2, "yes": 0.8}}, "'text' is empty"),
        ({}, "no column 'probabilities'"),
    ],
    ids=str,
)
def test_wrong_probabilities_are_bad_rows_and_are_left_out_only_on_demand(
    tmp_path: Path, row: dict[str, object], problem: str
) -> None:
    data = write_jsonl(tmp_path / "texts.jsonl", [*GOOD, {"text": "odd", **row}])
    rejected = tmp_path / "rejected.jsonl"

    with pytest.raises(NunatakError) as caught:
        load_task_data(data, spelt=TAUGHT)
    kept = load_task_data(data, spelt=RowFormat(is_taught=True, rejected=rejected))

    assert problem in str(caught.value)
    assert "texts.jsonl:21" in str(caught.value)
    assert len(kept.train) + len(kept.dev) == len(GOOD)
    (line,) = map(json.loads, rejected.read_text().splitlines())
    assert (line["row"], problem in line["reason"]) == (21, True)


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -1e-9, 1 + 1e-9, 10**400])
def test_no_number_but_a_probability_is_one(share: float) -> None:
    with raises("invalid_row", match="the probability of 'no' must be 0 to 1"):
        taught([*GOOD, {"text": "odd", "probabilities": {"no": share, "yes": 0.5}}])


def test_a_text_without_a_label_has_the_one_that_its_probabilities_say() -> None:
    rows = [{**row, "label": "no"} if number == 1 else row for number, row in enumerate(GOOD)]

    data = taught(rows)

    found = labels_by_text(data)
    assert [found[f"text {it}"] for it in (0, 1, 9, 11)] == ["yes", "no", "yes", "no"]
    assert found["text 10"] == "no"  # the first of equally likely ones
    assert data.labels == ("no", "yes")
    own = {it.text for it in data.train.examples if it.has_label}
    assert own <= {"text 1"}


def test_several_labels_apply_from_one_half_and_a_value_is_a_mean() -> None:
    several = taught(
        [{"text": f"t{it}", "probabilities": {"a": it / 20, "b": 0.5}} for it in range(20)],
        TaskKind.MULTI_LABEL,
    )
    values = taught(
        [{"text": f"t{it}", "probabilities": {"1": it / 20, "3": 1 - it / 20}} for it in range(20)],
        TaskKind.REGRESSION,
    )

    assert labels_by_text(several)["t3"] == LabelSet(names=("b",))
    assert labels_by_text(several)["t10"] == LabelSet(names=("a", "b"))
    assert labels_by_text(values)["t5"] == pytest.approx(1 * 0.25 + 3 * 0.75)
    assert values.labels == ("value",)


def test_a_teacher_is_asked_once_about_each_text_of_all_parts() -> None:
    log = list[TextInput]()
    train = [{"text": f"text {it}"} for it in range(20)]
    parts = {"train": [*train, *train], "dev": train[:4], "test": [{"text": "text 3"}]}

    data = taught(parts, teacher=asked_by(log))

    assert log == [row["text"] for row in train]
    assert data.labels == ("no", "yes")
    assert data.teacher is not None
    assert data.teacher.name == "big/1"
    assert [it.label for it in data.dev.examples] == ["no", "yes", "yes", "yes"]


def test_texts_without_an_answer_are_bad_rows_and_unreadable_ones_are_not_asked() -> None:
    log = list[TextInput]()
    teacher = asked_by(log, {"text 7": NunatakError("teacher_failed", problem="HTTP 500")})
    texts: list[object] = [*(f"text {it}" for it in range(20)), "", None]

    with raises("invalid_row") as caught:
        taught([{"text": text} for text in texts], teacher=teacher)

    assert "3 of 22 rows cannot be used" in str(caught.value)
    assert "big/1 has no answer: HTTP 500 (train[7])" in str(caught.value)
    assert set(log) == set(texts[:20])


def test_two_labels_of_one_text_are_refused() -> None:
    rows = [{"text": f"t{it}", "probabilities": {1: 0.5, "1": 0.5}} for it in range(20)]

    with raises("invalid_row", match="two labels of 'probabilities' are the same text"):
        taught(rows, TaskKind.MULTI_LABEL)


def test_a_label_that_the_teacher_does_not_have_is_a_bad_row() -> None:
    rows = [{"text": f"text {it}", "label": "no"} for it in range(20)]

    with raises("unknown_label", match=r"train\[20\]: label 'maybe' is unknown; .* 'no', 'yes'"):
        taught([*rows, {"text": "odd", "label": "maybe"}], teacher=asked_by([]))


@pytest.mark.parametrize(
    ("kind", "teacher"),
    [
        (TaskKind.RANKING, None),
        (TaskKind.TOKEN_CLASSIFICATION, None),
        (TaskKind.MULTI_LABEL, asked_by([])),
        (None, asked_by([], kind=TaskKind.RANKING)),
    ],
    ids=["ranking", "tags", "another kind", "a teacher that ranks"],
)
def test_only_tasks_that_classify_or_value_texts_are_taught(
    kind: TaskKind | None, teacher: Teacher | None
) -> None:
    with raises(
        "invalid_option", match="probabilities teach|the teacher makes a single-label task"
    ):
        taught(GOOD, kind, teacher)


def test_train_reads_no_probabilities() -> None:
    rows = [{**row, "label": "no" if number % 2 else "yes"} for number, row in enumerate(GOOD)]
    plain = [{"text": row["text"], "label": row["label"]} for row in rows]

    assert load_task_data(rows) == load_task_data(plain)
