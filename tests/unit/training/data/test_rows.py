"""Rows of every kind: the detection of the kind, the examples, and the refusals."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.examples import load_examples, write_jsonl
from doubles.refusals import raises
from nunatak_training.data import (
    Answers,
    AnswerSpan,
    DataProblem,
    Example,
    ExampleSet,
    LabelSet,
    Relevance,
    TaggedWords,
    TaskData,
    Word,
    data_warnings,
    load_task_data,
)
from nunatak_training.data.bad_rows import look_alikes, spelt_out
from nunatak_training.data.examples import sorted_labels
from nunatak_training.data.sources import load_test_rows
from nunatak_training.kinds import TaskKind, kind_of_row

ANSWER: JsonValue = {"text": "Oslo", "answer_start": 8}
OSLO = AnswerSpan(text="Oslo", begin=8)
ANSWERS: list[tuple[JsonValue, tuple[AnswerSpan, ...]]] = [
    ([], ()),
    ([ANSWER], (OSLO,)),
    ({"text": ["Oslo"], "answer_start": [8]}, (OSLO,)),
]
LABELS: dict[str, JsonValue] = {"a": "a", "3": 3, "-1": -1, "true": True, "false": False}
CASES: list[tuple[TaskKind, dict[str, JsonValue], list[Example]]] = [
    *(
        (TaskKind.SINGLE_LABEL, {"text": "x", "label": it}, [Example(text="x", label=label)])
        for label, it in LABELS.items()
    ),
    (
        TaskKind.SINGLE_LABEL,
        {"text": "x", "text_pair": "y", "label": "a", "source": "mail"},
        [Example(text="x", text_pair="y", label="a")],
    ),
    (
        TaskKind.MULTI_LABEL,
        {"text": "x", "labels": ["b", "a", "b"]},
        [Example(text="x", label=LabelSet(names=("a", "b")))],
    ),
    (
        TaskKind.MULTI_LABEL,
        {"text": "x", "labels": []},
        [Example(text="x", label=LabelSet(names=()))],
    ),
    (
        TaskKind.REGRESSION,
        {"text": "x", "text_pair": "y", "label": 2.5},
        [Example(text="x", text_pair="y", label=2.5)],
    ),
    (
        TaskKind.TOKEN_CLASSIFICATION,
        {"tokens": ["New", "York", "!"], "tags": ["B-L", "I-L", "O"]},
        [
            Example(
                text="New York !",
                label=TaggedWords(
                    words=(
                        Word(begin=0, end=3, tag="B-L"),
                        Word(begin=4, end=8, tag="I-L"),
                        Word(begin=9, end=10, tag="O"),
                    )
                ),
            )
        ],
    ),
    *(
        (
            TaskKind.QUESTION_ANSWERING,
            {"question": "where?", "context": "Here in Oslo.", "answers": answers},
            [Example(text="where?", text_pair="Here in Oslo.", label=Answers(spans=spans))],
        )
        for answers, spans in ANSWERS
    ),
    (
        TaskKind.RANKING,
        {"query": "q", "document": "d", "label": 1, "group": "g"},
        [Example(text="q", text_pair="d", label=Relevance(grade=1.0, group="g"))],
    ),
    (
        TaskKind.RANKING,
        {"query": "q", "documents": ["d", "e"], "relevance": [0, 3.5]},
        [
            Example(text="q", text_pair="d", label=Relevance(grade=0.0, group="q")),
            Example(text="q", text_pair="e", label=Relevance(grade=3.5, group="q")),
        ],
    ),
]
FIRST = Example(text="one", label="a")
SECOND = Example(text="two", text_pair="three", label="b")
DECOMPOSED = "Re\u0301clamation"


@pytest.mark.parametrize(("kind", "row", "examples"), CASES)
def test_row_decides_its_kind_and_becomes_examples(
    tmp_path: Path, kind: TaskKind, row: dict[str, JsonValue], examples: list[Example]
) -> None:
    assert kind_of_row(row) is kind
    assert load_examples(write_jsonl(tmp_path / "a.jsonl", [row])) == examples


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "x", "label": 3.0}, TaskKind.REGRESSION),
        ({"text": "x", "label": "3.0"}, TaskKind.SINGLE_LABEL),
        ({"text": "x", "label": "a", "labels": ["a"]}, TaskKind.SINGLE_LABEL),
        ({"sentence": "x"}, TaskKind.SINGLE_LABEL),
    ],
)
def test_label_type_distinguishes_names_from_values(
    row: dict[str, JsonValue], kind: TaskKind
) -> None:
    assert kind_of_row(row) is kind


def test_named_kind_overrules_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,3\ny,4.5\n", encoding="utf-8")

    assert [it.label for it in load_examples(path)] == ["3", "4.5"]
    assert [it.label for it in load_examples(path, kind=TaskKind.REGRESSION)] == [3.0, 4.5]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": 3, "label": "a"}, "'text' must be a string"),
        ({"text": " ", "label": "a"}, "'text' is empty"),
        ({"text": "", "label": 1.5}, "'text' is empty"),
        ({"text": None, "label": "a"}, "got nothing"),
        ({"text": "x", "text_pair": "", "label": "a"}, "'text_pair' is empty"),
        ({"text": "x", "label": ""}, "1 to 200 characters"),
        ({"text": "x", "label": " \xa0"}, "white space alone"),
        ({"text": "x", "labels": ["a", " "]}, "white space alone"),
        ({"text": "x", "label": None}, "got nothing"),
        ({"text": "x", "label": "a" * 201}, "got 201"),
        ({"text": "\ud800", "label": "a"}, "lone surrogate"),
        ({"text": "x", "label": "\udfff"}, "lone surrogate"),
        ({"text": "x", "labels": "a"}, "must be a list, got str"),
        ({"text": "x", "labels": [None]}, "got nothing"),
        ({"tokens": ["x"], "tags": []}, "equally many"),
        ({"tokens": [], "tags": []}, "at least 1"),
        ({"tokens": [" "], "tags": ["O"]}, "'tokens' is empty"),
        ({"query": "q", "documents": [], "relevance": []}, "at least 1"),
        ({"query": "q", "document": "d", "label": "much"}, "finite number"),
        ({"query": "q", "document": "d", "label": "1_5"}, "finite number"),
        (
            {"question": "q", "context": "Oslo", "answers": [{"text": "s", "answer_start": True}]},
            "needs a 'text' and an integer 'answer_start'",
        ),
        (
            {"question": "q", "context": "Here in Oslo.", "answers": [{"text": "Oslo"}]},
            "needs a 'text' and an integer 'answer_start'",
        ),
        (
            {
                "question": "q",
                "context": "Here in Oslo.",
                "answers": [{"text": "Oslo", "answer_start": 7}],
            },
            "the context has ' Osl' at character 7",
        ),
    ],
)
def test_broken_row_is_named_by_file_and_line(
    tmp_path: Path, row: dict[str, JsonValue], problem: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row])

    with raises("invalid_row") as caught:
        load_examples(path)

    assert caught.value.fields["where"] == "a.jsonl:1"
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("a.jsonl", '{"text": "x"}', "label"),
        ("a.csv", "sentence,label\nx,a\n", "text"),
        ("a.tsv", "text\tclass\nx\ta\n", "label"),
        ("a.jsonl", '{"tokens": ["x"]}', "tags"),
        ("a.jsonl", '{"question": "x", "context": "y"}', "answers"),
        ("a.jsonl", '{"query": "x", "document": "y"}', "label"),
        ("a.jsonl", '{"query": "x"}', "documents"),
        ("a.jsonl", '{"query": "x", "documents": ["y"]}', "relevance"),
    ],
)
def test_missing_column_is_named_with_what_was_found(
    tmp_path: Path, name: str, content: str, column: str
) -> None:
    (tmp_path / name).write_text(content)

    with raises("missing_column") as caught:
        load_examples(tmp_path / name)

    assert (caught.value.fields["where"], caught.value.fields["column"]) == (f"{name}:1", column)
    assert caught.value.fields["found"]
    # The options name the columns of kinds that read texts and labels alone.
    assert ("text_column" in str(caught.value)) == (
        column in {"text", "label"} and "query" not in content
    )


@pytest.mark.parametrize("value", ["high", 1e308, -1e308, "1e16", True, False])
def test_value_that_no_head_can_learn_is_named(tmp_path: Path, value: object) -> None:
    rows = [{"text": "x", "label": 1.5}, {"text": "y", "label": value}]

    with raises("invalid_row", match=re.escape(f"got {value!r}")) as caught:
        load_examples(write_jsonl(tmp_path / "a.jsonl", rows))

    assert caught.value.fields["where"] == "a.jsonl:2"


def test_any_difference_of_order_texts_and_labels_changes_the_digest() -> None:
    labels = [
        *("1.0", 1.0, 2.0, LabelSet(names=("a",)), LabelSet(names=("a", "b"))),
        *(Relevance(grade=1.0, group="a"), Relevance(grade=1.0, group="b")),
    ]
    sets = [
        *((FIRST, SECOND), (SECOND, FIRST), (FIRST,)),
        (FIRST, replace(SECOND, label="c")),
        (FIRST, replace(SECOND, text_pair=None)),
        (FIRST, Example(text='two","three', label="b")),
        *((Example(text="x", label=label),) for label in labels),
    ]

    assert len({ExampleSet(examples=it).digest for it in sets}) == len(sets)


def test_labels_of_another_kind_are_not_given_out() -> None:
    examples = ExampleSet(examples=(Example(text="x", label=1.5),))

    assert examples.labels(float) == [1.5]
    with pytest.raises(TypeError, match=r"expected labels of type str, got 1\.5"):
        examples.labels(str)


@pytest.mark.parametrize(
    ("trained", "scored"),
    [
        (("True", "False"), (True, False)),
        ((True, False), ("TRUE", "FALSE")),
        ((1, -2), ("1.0", "-2.0")),
        (("1.0", "-2.0"), (1, -2)),
    ],
)
def test_a_boolean_or_a_whole_number_is_the_label_that_spells_it(
    tmp_path: Path, trained: tuple[JsonValue, ...], scored: tuple[JsonValue, ...]
) -> None:
    def rows(labels: tuple[JsonValue, ...]) -> list[dict[str, JsonValue]]:
        return [{"text": f"{turn} {it}", "label": it} for it in labels for turn in "ab"]

    train = write_jsonl(tmp_path / "train.jsonl", rows(trained))
    dev = write_jsonl(tmp_path / "dev.jsonl", rows(scored))

    loaded = load_task_data(train, dev=dev)
    known = set(loaded.train.labels(str))

    assert len(known) == 2
    assert set(loaded.dev.labels(str)) == known
    read = load_test_rows(dev, kind=loaded.kind, labels=loaded.labels)
    assert {it.example.label for it in read} == known


@pytest.mark.parametrize(
    ("row", "known"),
    [
        ({"text": "x", "labels": ["new"]}, {"labels": ["a"]}),
        ({"tokens": ["x"], "tags": ["new"]}, {"tags": ["O"]}),
    ],
)
def test_dev_label_that_no_train_row_has_is_named(
    tmp_path: Path, row: dict[str, JsonValue], known: dict[str, JsonValue]
) -> None:
    other = {"tags": ["B-X"]} if "tags" in known else {}
    train = write_jsonl(tmp_path / "train.jsonl", [{**row, **known}, {**row, **known, **other}])
    dev = write_jsonl(tmp_path / "other.jsonl", [{**row, **known}, row])

    with raises("unknown_label", match="'new' is unknown") as caught:
        load_task_data(train, dev=dev)

    assert caught.value.fields["where"] == "other.jsonl:2"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1", "01", "0"], ("0", "01", "1")),
        (["\u0662", "10"], ("10", "\u0662")),
    ],
)
def test_labels_are_sorted_by_value_only_if_all_are_integers(
    labels: list[str], expected: tuple[str, ...]
) -> None:
    assert sorted_labels(labels) == expected


@pytest.mark.parametrize(
    ("rare", "common"),
    [
        ("Refund", "refund"),
        ("refund ", "refund"),
        ("request_refund", "request refund"),
        ("request-refund", "request_refund"),
        (DECOMPOSED, "Réclamation"),
        ("late\u200b", "late"),
        ("\ufefflate", "late"),
        ("la\u00adte", "late"),
        ("\uff4cate", "late"),
        ("l\u0430te", "late"),
        ("true", "1"),
        ("False", "0"),
        ("1.0", "true"),
    ],
)
def test_labels_that_differ_in_what_nobody_sees_look_alike(rare: str, common: str) -> None:
    assert look_alikes({rare: 4, common: 5}) == [(rare, common)]


@pytest.mark.parametrize("typo", ["refnud", "refun", "refundd", "refumd", "REFUMD"])
def test_a_rare_label_one_letter_from_a_frequent_one_looks_alike(typo: str) -> None:
    counts = {typo: 2, "refund": 30, "late fee": 20}

    assert [rare for rare, _ in look_alikes(counts)] == [typo]
    assert look_alikes({**counts, typo: 29}) == []


@pytest.mark.parametrize(
    "labels",
    [
        ("type1", "type2"),
        ("A", "A-"),
        ("1", "-1"),
        ("cat", "car"),
        ("refund", "reward"),
        ("C", "C++"),
        ("0", "1"),
        ("true", "0"),
    ],
)
def test_labels_with_a_meaning_of_their_own_do_not(labels: tuple[str, str]) -> None:
    assert look_alikes({labels[0]: 100, labels[1]: 1}) == []


def test_a_warning_names_the_pairs_with_their_counts() -> None:
    rows = [("late", 9), ("late\u200b", 3), ("broken", 9)]
    train = tuple(Example(text=f"{la} {it}", label=la) for la, n in rows for it in range(n))
    dev = ExampleSet(examples=(Example(text="q", label="late"),))
    data = TaskData(name="toy", train=ExampleSet(examples=train), dev=dev, labels=("late",))

    (found,) = data_warnings(data, max_length=8)

    assert found.problem is DataProblem.LOOK_ALIKE
    assert found.found == r"1 pair: 'late\u200b' (3) and 'late' (9)"


def test_labels_that_look_the_same_are_spelt_out_and_others_stay_readable() -> None:
    assert spelt_out(DECOMPOSED, "Réclamation") == (r"'Re\u0301clamation'", r"'R\xe9clamation'")
    assert spelt_out("l\u0430te", "late") == (r"'l\u0430te'", "'late'")
    assert spelt_out("défault", "défaut") == ("'défault'", "'défaut'")
