"""Laws of the sets that a trained task is tested on."""

from pathlib import Path

import pytest

from doubles.examples import load_test_set, toy_data, write_jsonl
from doubles.refusals import raises
from nunatak_training.data import ExampleSet, TaskData
from nunatak_training.kinds import TaskKind


def test_test_set_with_a_label_of_its_own_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "far.jsonl", [{"text": "a b", "label": "never"}])

    with raises("unknown_label", match=r"far\.jsonl:1: label 'never'"):
        load_test_set(path, toy_data())


@pytest.mark.parametrize(
    ("kind", "rows", "problem"),
    [
        (TaskKind.SINGLE_LABEL, [], "there are no test examples"),
        (
            TaskKind.RANKING,
            [{"query": "a", "document": "b", "label": 0}],
            "no test document has a grade above 0",
        ),
    ],
)
def test_test_set_that_nothing_can_be_scored_on_is_refused(
    tmp_path: Path, kind: TaskKind, rows: list[dict[str, object]], problem: str
) -> None:
    path = write_jsonl(tmp_path / "far.jsonl", rows)
    none = ExampleSet(examples=())
    data = TaskData(name="toy", kind=kind, train=none, dev=none, labels=("a", "b"))

    with raises("too_few_examples", match=problem):
        load_test_set(path, data)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        pytest.param(TaskKind.MULTI_LABEL, {"text": "a b", "labels": ["a", "never"]}, id="labels"),
        pytest.param(
            TaskKind.TOKEN_CLASSIFICATION, {"tokens": ["a"], "tags": ["never"]}, id="tags"
        ),
    ],
)
def test_label_of_its_own_among_several_is_refused(
    tmp_path: Path, kind: TaskKind, row: dict[str, object]
) -> None:
    path = write_jsonl(tmp_path / "far.jsonl", [row])
    none = ExampleSet(examples=())
    data = TaskData(name="toy", kind=kind, train=none, dev=none, labels=("a", "b"))

    with raises("unknown_label", match=r"far\.jsonl:1: label 'never'"):
        load_test_set(path, data)
