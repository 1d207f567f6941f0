import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from doubles.examples import load_examples, rows_of, toy_examples, write_jsonl
from doubles.refusals import raises
from nunatak_training.data import ExampleSet, RowFormat, load_task_data
from nunatak_training.data.examples import Relevance
from nunatak_training.kinds import TaskKind

TRAIN = toy_examples(40, seed=1)
DEV = toy_examples(10, seed=2)


class DatasetShelf:
    """Data sets by name, in memory."""

    def __init__(self, **splits: Dataset) -> None:
        self._splits = splits
        self.asked: list[tuple[str, str | None]] = []

    def __call__(self, name: str, config: str | None) -> Mapping[str, Dataset]:
        self.asked.append((name, config))
        return self._splits


def labelled(texts: list[str], classes: list[int]) -> Dataset:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    return Dataset.from_dict({"text": texts, "label": classes}, features=features)


@pytest.mark.parametrize("dev_name", ["dev", "validation"])
def test_folder_gives_train_dev_and_test(tmp_path: Path, dev_name: str) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    for name, examples in (("train", TRAIN), (dev_name, DEV), ("test", DEV[:4])):
        write_jsonl(folder / f"{name}.jsonl", rows_of(examples))

    data = load_task_data(folder)

    assert data.name == "toy"
    assert data.train.examples == TRAIN
    assert data.dev.examples == DEV
    assert data.test == ExampleSet(examples=DEV[:4])
    assert load_task_data(folder / "train.jsonl").test is None
    assert data.labels == ("early", "late")


def test_drawn_dev_split_is_a_tenth_of_every_class(tmp_path: Path) -> None:
    rows = rows_of(TRAIN) + [{"text": f"rare {number}", "label": "rare"} for number in range(2)]
    path = write_jsonl(tmp_path / "all.jsonl", rows)

    data = load_task_data(path)

    assert Counter(it.label for it in data.dev.examples) == {"early": 2, "late": 2, "rare": 1}
    assert data.dev == load_task_data(path).dev != load_task_data(path, seed=1).dev
    assert sorted(
        [*data.train.examples, *data.dev.examples], key=lambda it: (it.text, it.label)
    ) == sorted(load_examples(path), key=lambda it: (it.text, it.label))


@pytest.mark.parametrize(
    ("label", "hint"),
    [("one", "; give it at least 2"), ("1.5", r" \(for values, the kind is regression\)")],
)
def test_class_with_one_train_example_is_named(tmp_path: Path, label: str, hint: str) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", [*rows_of(TRAIN), {"text": "m", "label": label}])

    with raises("too_few_examples", match=f"label '{label}' has 1 train example{hint}") as caught:
        load_task_data(path)

    assert caught.value.fields["where"] == "all.jsonl:41"
    assert "with on_bad_row=skip, Python with rejected=FILE" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "no train examples"),
        ([{"text": it, "label": "a"} for it in "xy"], "2 labels"),
        ([{"text": it, "labels": []} for it in "xy"], "has a label"),
        ([{"text": it, "label": 0.5} for it in "xy"], "same value"),
        pytest.param(
            [{"text": it, "label": ord(it) * 1e-200} for it in "xy"], "as float32", id="too-small"
        ),
        ([{"text": it, "label": 1e9 + ord(it) / 8} for it in "xy"], "as float32"),
        pytest.param([{"tokens": ["x"], "tags": ["O"]}] * 2, "2 tags", id="one-tag"),
        pytest.param(
            [{"question": "x", "context": "y", "answers": []}] * 2, "an answer", id="no-answer"
        ),
        ([{"query": it, "document": it, "label": 0} for it in "xy"], "same value$"),
        ([{"text": it, "labels": [it]} for it in "abc"], "a label of its own"),
        ([{"text": it, "label": it} for it in "aabb"], "2 distinct texts"),
    ],
)
def test_data_that_teaches_nothing_is_refused(
    tmp_path: Path, rows: list[dict[str, object]], problem: str
) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", rows)

    with raises("too_few_examples", match=problem):
        load_task_data(path)


def test_a_first_value_without_a_fraction_is_told_to_be_a_label(tmp_path: Path) -> None:
    rows = [{"text": str(it), "label": it} for it in (1, 0.5, 1.5)]
    path = write_jsonl(tmp_path / "all.jsonl", rows)

    with raises("invalid_row", match=r"'label' .* got float; set kind to regression if"):
        load_task_data(path)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_dev_queries_are_whole_and_have_a_relevant_document(seed: int) -> None:
    rows = [
        {"query": f"q{query}", "document": f"d{rank}", "label": int(query % 5 == rank == 0)}
        for query in range(20)
        for rank in range(2)
    ]

    data = load_task_data(rows, seed=seed)

    assert {it.grade for it in data.dev.labels(Relevance)} == {0, 1}
    trained, held = ({it.text for it in part.examples} for part in (data.train, data.dev))
    assert (len(data.train), len(data.dev)) == (38, 2)
    assert not trained & held


@pytest.mark.parametrize("names", [("train.jsonl", "train.csv"), ("dev.jsonl", "validation.jsonl")])
def test_a_folder_with_two_files_for_one_part_is_refused(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name in {"train.jsonl", *names}:
        write_jsonl(tmp_path / name, rows_of(TRAIN))

    with raises("invalid_option", match=f"has {names[0]} and {names[1]}, which may differ"):
        load_task_data(tmp_path)


def test_folder_without_train_file_is_refused(tmp_path: Path) -> None:
    with raises("data_not_found", match=r"train\.jsonl"):
        load_task_data(tmp_path)


@pytest.mark.parametrize(
    "source", [Path("nowhere"), "nowhere", "a/b", "trian.jsonl", "a.xlsx", "./nowhere", "/nowhere"]
)
def test_missing_path_is_refused_without_a_search_elsewhere(source: str | Path) -> None:
    shelf = DatasetShelf()

    with raises("data_not_found", match="no such file or folder"):
        load_task_data(source, load_dataset=shelf)

    assert shelf.asked == []


@pytest.mark.parametrize(
    ("source", "asked"),
    [("datasets:imdb", ("imdb", None)), ("datasets:owner/set:small", ("owner/set", "small"))],
)
def test_name_with_the_prefix_is_a_data_set(source: str, asked: tuple[str, str | None]) -> None:
    texts = [f"text {number}" for number in range(4)]
    shelf = DatasetShelf(
        train=labelled(texts, [0, 1, 0, 1]),
        validation=labelled(texts[:2], [1, 0]),
        test=labelled(texts[:1], [-1]),
    )

    data = load_task_data(source, load_dataset=shelf)

    assert shelf.asked == [asked]
    assert data.name == source.removeprefix("datasets:")
    assert [example.label for example in data.train.examples] == ["no", "yes", "no", "yes"]
    assert [example.label for example in data.dev.examples] == ["yes", "no"]
    assert data.test is None


def test_data_set_without_train_split_is_refused() -> None:
    shelf = DatasetShelf(test=labelled(["x"], [0]))

    with raises("data_not_found", match="must have a split 'train'"):
        load_task_data("datasets:toy", load_dataset=shelf)


def test_unlabelled_rows_of_a_data_set_are_named_and_can_be_skipped(tmp_path: Path) -> None:
    texts, labels = [f"text {it}" for it in range(41)], [*[0, 1] * 20, -1]
    spelt = RowFormat(rejected=tmp_path / "rejected.jsonl")
    shelf = DatasetShelf(train=labelled(texts, labels))

    with raises("invalid_row") as caught:
        load_task_data("datasets:toy", load_dataset=shelf)
    data = load_task_data("datasets:toy", spelt=spelt, load_dataset=shelf)

    assert caught.value.fields["where"] == "toy/train:41"
    assert len(data.train) + len(data.dev) == 40
    assert '"row": 41' in (tmp_path / "rejected.jsonl").read_text()


def test_class_numbers_in_lists_become_names_too() -> None:
    features = Features(
        {"tokens": List(Value("string")), "tags": List(ClassLabel(names=["O", "B-X"]))}
    )
    rows = {"tokens": [["in", "Oslo"], ["here"]] * 2, "tags": [[0, 1], [0]] * 2}
    shelf = DatasetShelf(train=Dataset.from_dict(rows, features=features))

    data = load_task_data("datasets:toy", load_dataset=shelf)

    assert data.kind is TaskKind.TOKEN_CLASSIFICATION
    assert data.labels == ("B-X", "O")


def distinct(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the rows with a text of its own in each."""
    return [
        {
            name: [f"{number}", *value[1:]]
            if name == "tokens" and isinstance(value, list)
            else f"{value} {number}"
            if name in {"text", "question"}
            else value
            for name, value in row.items()
        }
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("common", "rare"),
    [
        ({"text": "x", "labels": ["a"]}, {"text": "y", "labels": ["a", "rare"]}),
        ({"tokens": ["x", "y"], "tags": ["O", "B-X"]}, {"tokens": ["z"], "tags": ["B-RARE"]}),
    ],
)
@pytest.mark.parametrize("num_rare", [1, 2])
def test_drawn_dev_split_leaves_every_label_in_train(
    tmp_path: Path, common: dict[str, object], rare: dict[str, object], num_rare: int
) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", distinct([common] * 8 + [rare] * num_rare))

    for seed in range(30):
        data = load_task_data(path, seed=seed)

        assert len(data.dev) == 1
        assert len(data.train) == 7 + num_rare


def test_drawn_dev_split_is_as_ever_where_no_label_is_rare(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "labels": ["a"]} for number in range(20)]
    path = write_jsonl(tmp_path / "all.jsonl", rows)

    drawn = random.Random(5).sample(range(20), 2)

    expected = {f"text {number}" for number in drawn}
    assert {it.text for it in load_task_data(path, seed=5).dev.examples} == expected


@pytest.mark.parametrize(
    ("odd", "usual", "problem"),
    [
        ({"text": "x", "label": 1.5}, {"text": "x", "label": 0.5}, "same value"),
        (
            {"question": "x", "context": "y", "answers": [{"text": "y", "answer_start": 0}]},
            {"question": "x", "context": "y", "answers": []},
            "an answer",
        ),
    ],
)
def test_drawn_dev_split_that_leaves_nothing_to_learn_is_refused(
    tmp_path: Path, odd: dict[str, object], usual: dict[str, object], problem: str
) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", distinct([odd, *[usual] * 5]))
    seed = next(it for it in range(99) if random.Random(it).sample(range(6), 1) == [0])

    with raises("too_few_examples", match=f"without the dev examples.*{problem}"):
        load_task_data(path, seed=seed)


@pytest.mark.parametrize("label", [{"label": "a"}, {"labels": ["a", "b"]}])
def test_equal_texts_are_never_on_both_sides_of_a_split(
    tmp_path: Path, label: dict[str, object]
) -> None:
    other = {"label": "b"} if "label" in label else label
    ways = ("text {}", "Text {}", " text  {} ", "\uff54ext {}")
    rows = [
        {"text": ways[number // 15].format(number % 15), **(label if number % 15 % 2 else other)}
        for number in range(60)
    ]
    path = write_jsonl(tmp_path / "data.jsonl", rows)

    for seed in range(20):
        data = load_task_data(path, seed=seed)
        trained = {example.text.split()[1] for example in data.train.examples}
        held = {example.text.split()[1] for example in data.dev.examples}
        assert held
        assert not trained & held
        assert len(data.train) + len(data.dev) == 60


def test_a_text_with_two_labels_stays_in_train(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(8)]
    rows += [{"text": "torn", "label": "a"}, {"text": "torn", "label": "b"}]
    path = write_jsonl(tmp_path / "data.jsonl", rows)

    for seed in range(20):
        dev = load_task_data(path, seed=seed).dev
        assert "torn" not in {example.text for example in dev.examples}


RANKED = {"query": "x", "documents": ["y", "z"]}
NAMED = [{"text": text, "label": label} for text, label in zip("wxyz", "aabb", strict=True)]


@pytest.mark.parametrize(
    ("train", "part", "rows", "code", "problem"),
    [
        (NAMED, "dev", [], "too_few_examples", "no dev examples"),
        (NAMED, "test", [], "too_few_examples", "no test examples"),
        (NAMED, "test", [{"text": "x", "label": "c"}], "unknown_label", r"test\.jsonl:1"),
        (
            [{**RANKED, "relevance": [-2, 1]}],
            "dev",
            [{**RANKED, "relevance": [-1, 0]}],
            "too_few_examples",
            "no dev document has a grade above 0",
        ),
    ],
    ids=["empty-dev", "empty-test", "unknown-label", "no-grade"],
)
def test_a_part_that_scores_nothing_is_refused(
    tmp_path: Path,
    train: list[dict[str, object]],
    part: str,
    rows: list[dict[str, object]],
    code: str,
    problem: str,
) -> None:
    write_jsonl(tmp_path / "train.jsonl", train)
    write_jsonl(tmp_path / f"{part}.jsonl", rows)

    with raises(code, match=problem):
        load_task_data(tmp_path)


def test_columns_of_other_names_are_read_as_texts_and_label(tmp_path: Path) -> None:
    rows = [
        {"text": "not this", "body": it.text, "query": "?", "class": it.label, "label": "not this"}
        for it in toy_examples(20)
    ]
    path = write_jsonl(tmp_path / "data.jsonl", rows)

    data = load_task_data(path, dev=path, spelt=RowFormat(text="body", label="class"))

    assert data.kind is TaskKind.SINGLE_LABEL
    assert data.train.examples == toy_examples(20)
    assert data.dev == data.train
    pairs = load_task_data(path, spelt=RowFormat(text="body", label="class", pair="query")).train
    assert {it.text_pair for it in pairs.examples} == {"?"}


def test_a_dev_file_without_examples_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "data.jsonl", rows_of(toy_examples(20)))

    with raises("too_few_examples", match=r"^other\.jsonl: there are no dev examples"):
        load_task_data(path, dev=write_jsonl(tmp_path / "other.jsonl", []))


def test_a_label_column_of_lists_is_a_task_of_several_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": "x", "tags": ["a"], "other": "y"},
        {"text": "z", "tags": []},
    ]
    path = write_jsonl(tmp_path / "data.jsonl", rows)

    data = load_task_data(path, dev=path, spelt=RowFormat(label="tags"))

    assert data.kind is TaskKind.MULTI_LABEL
    assert [example.text_pair for example in data.train.examples] == [None, None]


@pytest.mark.parametrize(
    ("row", "spelt", "code", "problem"),
    [
        *(
            ({"text": "x", "label": "a"}, it, "invalid_option", "in columns of their own, got the")
            for it in (
                RowFormat(label="text"),
                RowFormat(text="label"),
                RowFormat(pair="text"),
                RowFormat(pair="label"),
            )
        ),
        (
            {"text": "x", "label": "a"},
            RowFormat(text="body"),
            "missing_column",
            "no column 'body'; found 'text', 'label'",
        ),
        (
            {"body": "x", "mood": "a"},
            RowFormat(text="body"),
            "missing_column",
            "no column 'label'; found 'mood', 'body'",
        ),
        (
            {"query": "x", "document": "y", "label": 1},
            RowFormat(text="query"),
            "invalid_option",
            "rename its columns",
        ),
    ],
)
def test_names_of_columns_that_do_not_fit_the_file_are_refused(
    tmp_path: Path, row: dict[str, object], spelt: RowFormat, code: str, problem: str
) -> None:
    kind = TaskKind.RANKING if "query" in row else None

    with raises(code, match=problem):
        load_task_data(write_jsonl(tmp_path / "data.jsonl", [row]), kind=kind, spelt=spelt)
