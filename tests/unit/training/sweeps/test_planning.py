"""Laws of planning a sweep: its runs, and their parts of the data."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.examples import toy_data, toy_examples, write_jsonl
from doubles.refusals import raises
from doubles.sweeps import QUICK, toy_runs
from nunatak_contract.methods import Lora
from nunatak_training.data import Example, ExampleSet, Relevance
from nunatak_training.data.examples import Label
from nunatak_training.kinds import TaskKind
from nunatak_training.sweeps.planning import Run, cut_data, read_grid
from nunatak_training.sweeps.reporting import method_label
from nunatak_training.sweeps.results import Cut

YAML = """
name: small
tasks: [{name: tone, data: tone.jsonl}]
methods: [{kind: topk, frozen: [3, 4]}, {kind: full}]
regularizers: [{name: none}, {name: graddrop, rate: 0.1}]
learning_rates: [1.0e-4]
train_caps: [100, all]
recipe: {epochs: 3}
"""
TOML = """
name = "small"
tasks = [{name = "tone", data = "tone.jsonl"}]
methods = [{kind = "topk", frozen = [3, 4]}, {kind = "full"}]
regularizers = [{name = "none"}, {name = "graddrop", rate = 0.1}]
learning_rates = [1e-4]
train_caps = [100, "all"]
recipe = {epochs = 3}
"""


def digests(runs: tuple[Run, ...]) -> list[str]:
    return [run.description.digest for run in runs]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_runs_are_the_product_of_all_axes(folder: Path) -> None:
    runs = toy_runs(
        folder,
        methods=[{"kind": "full"}, {"kind": "topk", "frozen": [1, 2]}],
        regularizers=[{"name": "none"}, {"name": "graddrop", "rate": 0.5}],
        tapt=[None, {"epochs": 2}],
        learning_rates=[1e-3, 1e-4],
        seeds=[0, 1, 2],
        train_caps=[8, "all"],
    )
    methods = {"full", "frozen 1", "frozen 2"}

    assert len(set(digests(runs))) == 3 * 2 * 2 * 2 * 3 * 2
    assert {method_label(run.description) for run in runs} == {
        *methods, *(f"{method} after TAPT of 2 epochs" for method in methods),
    }  # fmt: skip
    assert {run.description.data.num_train for run in runs} == {8, 24}
    assert {run.description.recipe.dropout for run in runs} == {0.0, 0.1}


def test_equal_runs_by_different_names_are_one(folder: Path) -> None:
    methods: JsonValue = [
        {"kind": "topk", "frozen": [1, 1, 3]},
        {"kind": "topk", "layers": [2]},
        {"kind": "head"},
    ]

    assert len(toy_runs(folder, methods=methods)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"methods": [{"kind": "full"}]},
        {"methods": [{"kind": "topk", "layers": [1]}]},
        {"methods": [{"kind": "bottleneck", "size": 4}]},
        {"methods": [{"kind": "lora"}]},
        {"seeds": [1]},
        {"learning_rates": [0.5]},
        {"train_caps": [8]},
        {"dev_cap": 4},
        {"dev_from_train": True, "train_caps": [16], "dev_cap": 8},
        {"recipe": {**QUICK, "epochs": 3}},
        {"tasks": [{"name": "toy", "recipe": {"metric": "f1_macro"}}]},
    ],
)
def test_every_change_of_the_result_changes_the_digest(
    folder: Path, changes: dict[str, JsonValue]
) -> None:
    assert not set(digests(toy_runs(folder))) & set(digests(toy_runs(folder, **changes)))


def test_names_of_sweep_task_folder_and_columns_do_not_change_the_digest(
    folder: Path, tmp_path: Path
) -> None:
    moved: dict[str, JsonValue] = {"text_column": "message", "label_column": "intent"}
    for seed, (part, count) in enumerate({"data": 24, "dev": 8}.items(), start=1):
        rows = [{"message": it.text, "intent": it.label} for it in toy_examples(count, seed=seed)]
        moved[part] = str(write_jsonl(tmp_path / f"{part}.jsonl", rows))
    other = toy_runs(folder, name="other", tasks=[{"name": "moved", **moved}], data_root=None)

    assert digests(other) == digests(toy_runs(folder))


def test_two_names_for_the_same_runs_are_refused(folder: Path) -> None:
    tasks: JsonValue = [{"name": "toy"}, {"name": "again", "data": "toy"}]

    with raises("invalid_sweep", match="'toy' and 'again' have the same examples and settings"):
        toy_runs(folder, tasks=tasks)


def test_innermost_setting_wins(folder: Path) -> None:
    outer = dict.fromkeys(("weight_decay", "warmup_share", "dropout", "learning_rate"), 0.5)
    (run,) = toy_runs(
        folder,
        recipe={**QUICK, **outer, "batch_size": 2, "seed": 7},
        tasks=[
            {"name": "toy", "recipe": {"weight_decay": 0.4, "warmup_share": 0.4, "dropout": 0.4}}
        ],
        methods=[{"kind": "head", "recipe": {"warmup_share": 0.3, "dropout": 0.3}}],
        regularizers=[{"name": "none", "recipe": {"dropout": 0.2, "seed": 6}}],
        learning_rates=[0.1],
        seeds=[3],
    )

    recipe = run.description.recipe
    assert (recipe.batch_size, recipe.weight_decay) == (2, 0.4)
    assert (recipe.warmup_share, recipe.dropout) == (0.3, 0.2)
    assert (recipe.learning_rate, recipe.seed) == (0.1, 3)


def test_seed_and_regularizer_match_the_recipe_where_no_axis_names_them(folder: Path) -> None:
    (run,) = toy_runs(
        folder,
        methods=[{"kind": "full"}],
        recipe={**QUICK, "seed": 7, "dropout": 0.0, "regularizer": {"name": "mixout"}},
    )

    recipe = run.description.recipe
    assert (recipe.seed, recipe.regularizer.name) == (7, "mixout")


def test_axes_at_their_defaults_and_named_ones_of_the_same_values_are_the_same_runs(
    folder: Path,
) -> None:
    named = toy_runs(folder, seeds=[0], regularizers=[{"name": "none"}])

    assert digests(named) == digests(toy_runs(folder))


def test_overrides_win_over_every_other_place(folder: Path) -> None:
    runs = toy_runs(
        folder,
        tasks=[{"name": "toy", "recipe": {"epochs": 4}}],
        methods=[{"kind": "head", "recipe": {"epochs": 5}}],
        seeds=[0, 1],
        learning_rates=[1e-3],
        overrides={"epochs": 1, "seed": 7, "learning_rate": 0.5},
    )

    (recipe,) = [run.description.recipe for run in runs]
    assert (recipe.epochs, recipe.seed, recipe.learning_rate) == (1, 7, 0.5)


def test_a_list_of_values_stands_for_one_method_each_and_a_list_of_lists_for_lists(
    folder: Path,
) -> None:
    method: JsonValue = {"kind": "lora", "rank": [2, 4], "targets": [["key"], ["query", "value"]]}

    found = [run.description.recipe.method for run in toy_runs(folder, methods=[method])]

    assert [(it.rank, len(it.targets)) for it in found if isinstance(it, Lora)] == [
        (2, 1), (2, 2), (4, 1), (4, 2),
    ]  # fmt: skip


DATA = toy_data(num_train=40, num_dev=20)


def texts(examples: ExampleSet | None) -> list[str]:
    return [] if examples is None else [example.text for example in examples.examples]


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    remaining = iter(whole)
    return all(text in remaining for text in part)


def test_no_cut_is_the_whole_data() -> None:
    cut = cut_data(DATA, Cut())

    assert cut == DATA
    assert cut.test is None


def test_smaller_cut_lies_in_the_larger_in_the_order_of_the_file_with_all_labels() -> None:
    data = replace(DATA, labels=(*DATA.labels, "rare"))
    cuts = [cut_data(data, Cut(train=count)) for count in (5, 15)]
    small, large = (it.train for it in cuts)

    assert {it.labels for it in cuts} == {data.labels}
    assert len(small) == 5
    assert is_subsequence(texts(small), texts(large))
    assert is_subsequence(texts(large), texts(DATA.train))
    assert texts(large) != texts(DATA.train)[:15], "the first rows need not be a random sample"


def test_dev_from_train_is_disjoint_from_train_and_leaves_dev_for_the_test() -> None:
    cut = cut_data(DATA, Cut(train=10, dev=8, dev_from_train=True))

    assert (len(cut.train), len(cut.dev)) == (10, 8)
    assert not set(texts(cut.train)) & set(texts(cut.dev))
    assert set(texts(cut.dev)) <= set(texts(DATA.train))
    assert cut.test == DATA.dev


def test_equal_texts_of_one_train_set_are_not_on_both_sides_of_the_cut() -> None:
    rows = tuple(Example(text=f"text {it // 2}", label="ab"[it // 2 % 2]) for it in range(80))

    cut = cut_data(
        replace(DATA, train=ExampleSet(examples=rows)), Cut(train=20, dev=40, dev_from_train=True)
    )

    assert len(cut.train) == 20
    assert len(cut.dev) > 10
    assert not set(texts(cut.train)) & set(texts(cut.dev))


def test_cut_that_leaves_nothing_to_choose_by_is_refused() -> None:
    with raises("too_few_examples", match="40 train examples leave no dev examples"):
        cut_data(DATA, Cut(train=40, dev=5, dev_from_train=True))


RANKED = tuple(
    Example(
        text=f"query {group}",
        text_pair=f"document {number}",
        label=Relevance(grade=float(number == 0), group=str(group)),
    )
    for number in range(5)
    for group in range(8)
)


@pytest.mark.parametrize(
    "cut", [Cut(train=4), Cut(dev=4), Cut(train=20, dev=4, dev_from_train=True)]
)
def test_cap_below_the_documents_of_a_query_is_refused(cut: Cut) -> None:
    examples = ExampleSet(examples=RANKED)
    ranked = replace(DATA, kind=TaskKind.RANKING, train=examples, dev=examples)

    with raises("too_few_examples", match="at most 4 examples is empty"):
        cut_data(ranked, cut)


@pytest.mark.parametrize(
    ("kind", "same", "other", "reason"),
    [
        (TaskKind.SINGLE_LABEL, "a", "b", r"at least 2 labels, got \['a'\]"),
        (TaskKind.REGRESSION, 1.0, 2.0, "have the same value"),
        (
            TaskKind.RANKING,
            Relevance(grade=1.0, group="a"),
            Relevance(grade=0.0, group="b"),
            "have the same value",
        ),
    ],
)
def test_cap_that_leaves_one_value_is_refused(
    kind: TaskKind, same: Label, other: Label, reason: str
) -> None:
    labels = [same] * 7 + [other]
    examples = ExampleSet(
        examples=tuple(Example(text=f"text {it}", label=label) for it, label in enumerate(labels))
    )
    data = replace(DATA, kind=kind, train=examples, dev=examples)

    assert cut_data(data, Cut(train=8)).train == examples
    cap = 7 if kind is TaskKind.RANKING else 1
    with raises("too_few_examples", match=f"{reason}; raise the cap"):
        cut_data(data, Cut(train=cap))


def test_documents_of_one_group_stay_together() -> None:
    ranked = replace(DATA, kind=TaskKind.RANKING, train=ExampleSet(examples=RANKED))

    part = cut_data(ranked, Cut(train=13)).train

    sizes = Counter(it.text for it in part.examples)
    assert sorted(sizes.values()) == [5, 5]


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    as_yaml = read_grid(written(tmp_path, "small.yaml", YAML))
    as_toml = read_grid(written(tmp_path, "small.toml", TOML))

    assert as_yaml == as_toml
    assert as_yaml.train_caps == (100, "all")


def test_options_take_the_place_of_the_file(tmp_path: Path) -> None:
    grid = read_grid(written(tmp_path, "a.yaml", YAML), {"seeds": ["4", "5"], "train_caps": ["7"]})

    assert grid.seeds == (4, 5)
    assert grid.train_caps == (7,)
    assert grid.name == "small"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "tasks: [", "cannot be parsed"),
        ("a.toml", "tasks = [", "cannot be parsed"),
        pytest.param("a.yaml", f"tasks: {'[' * 5000}", "cannot be parsed", id="deep-yaml"),
        pytest.param("a.toml", f"tasks = {'[' * 5000}", "cannot be parsed", id="deep-toml"),
        ("a.yaml", "- one", "expected settings by name"),
        ("a.json", "{}", "must end in .yaml, .yml or .toml"),
        ("a.yaml", YAML + "layer: 3", "layer: there is no such field"),
        ("a.yaml", YAML.replace("kind: full", "kind: fully"), "methods.1: .*'fully'"),
        ("a.yaml", YAML.replace("kind: topk,", "kind: topk, layers: 2,"), "give one of them"),
        ("a.yaml", YAML.replace("kind: full", "kind: lora, rnk: 4"), "nearest is 'rank'"),
        ("a.yaml", YAML.replace("kind: full", "kind: full, rank: 4"), "belongs to method lora"),
        ("a.yaml", YAML.replace("kind: full", "kind: full, seed: 3"), "seed: .* under recipe"),
        ("a.yaml", YAML.replace("kind: full", "kind: full, tapt: {epochs: 2}"), "under recipe"),
        ("a.yaml", YAML.replace("frozen: [3, 4]", "layers: [1, auto]"), "auto is a search"),
        ("a.yaml", YAML.replace("kind: full", "kind: lora, rank: []"), "methods.1: .*has no value"),
        ("a.yaml", YAML + "name: twice", "'name' stands twice"),
        ("a.yaml", YAML + "dev_from_train: true", "dev_from_train needs numbers"),
        ("a.yaml", YAML.replace("[100, all]", "[0]"), "train_caps.0"),
    ],
)
def test_wrong_file_is_refused_by_name_and_reason(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    with raises("invalid_sweep", match=rf"{name}: .*{problem}"):
        read_grid(written(tmp_path, name, text))


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with raises("invalid_sweep", match=r"gone\.yaml: cannot be read"):
        read_grid(tmp_path / "gone.yaml")
