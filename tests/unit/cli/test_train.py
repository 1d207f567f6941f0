"""Laws of the options of `nunatak train`; training itself is tried end to end."""

from pathlib import Path

import pytest

from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.terminals import nunatak
from nunatak_training.kinds import TaskKind
from nunatak_training.run_settings import all_settings


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--rank", "4"), "rank belongs to method lora, not to topk"),
        (
            ("--set", "epoch=4"),
            "no setting 'epoch'; the nearest is 'epochs'. All: method,",
        ),
        (("--set", "epochs"), "--set expects NAME=VALUE, got 'epochs'"),
        (("--set", "seed=1", "--set", "seed=2"), "--set names 'seed' twice"),
        (("--learning-rate", "1", "--set", "learning_rate=1"), "--learning-rate and --set"),
        (("--max-length", "8", "--set", "max_length=8"), "--max-length and --set max_length"),
        (("--max-length", "3"), "max_length: Input should be greater than or equal to 4"),
        (("--first-layer", "3"), "first_layer belongs to method bottleneck and lora, not to topk"),
        (("--method", "lora", "--first-layer", "-1"), "first_layer: Input should be greater"),
        (("--on-long", "cut", "--set", "on_long=cut"), "--on-long and --set on_long"),
        (("--epochs", "0"), "epochs: Input should be greater than or equal to 1"),
        (("--layers", "1", "--frozen", "1"), "give one of them"),
        (("--method", "magic"), "method must be one of topk, head"),
        (("--kind", "poem"), "--kind must be one of single-label, multi-label"),
        (
            ("--set", "regularizer.rate=0.1"),
            "regularizer.rate belongs to a regularizer and needs regularizer.name",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_read(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    place = ("--registry", str(tmp_path / "registry"))

    ran = nunatak("train", "--task", "tone", "--data", "x.jsonl", *place, *arguments)

    assert ran.exit_code == 1
    assert problem in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_setting_with_what_it_may_be() -> None:
    shown = nunatak("train", "--help").stdout
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}

    assert {setting.name for setting in all_settings()} <= rows.keys()
    assert all(kind in shown for kind in TaskKind)
    assert "adamw | adam | sgd" in rows["optimizer"]
    assert "8" in rows["rank"]
    assert "most tokens that are read of a text" in rows["max_length"]


@pytest.mark.parametrize("missing", ["--task", "--data"])
def test_task_and_data_are_required(missing: str) -> None:
    given = {"--task": "tone", "--data": "x.jsonl"}
    del given[missing]

    assert nunatak("train", *(part for pair in given.items() for part in pair)).exit_code == 2


def test_broken_data_is_one_line_with_its_place(tmp_path: Path) -> None:
    data = tmp_path / "broken.jsonl"
    data.write_text('{"text": "a"}\n', encoding="utf-8")

    ran = nunatak(
        *("train", "--task", "tone", "--data", str(data)),
        *("--registry", str(tmp_path / "registry")),
    )

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [")
    assert "broken.jsonl" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_malformed_alias_fails_before_any_work(tmp_path: Path) -> None:
    ran = nunatak(
        *("train", "--task", "tone", "--data", "absent.jsonl", "--promote", "../prod"),
        *("--registry", str(tmp_path / "registry")),
    )

    assert ran.stderr.startswith("error [invalid_name]: ")


def test_senseless_regularizer_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "toy.jsonl", rows_of(toy_examples(40)))

    ran = nunatak(
        *("train", "--task", "tone", "--data", str(data), "--method", "head"),
        *("--set", "regularizer.name=graddrop", "--registry", str(tmp_path / "registry")),
    )

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [invalid_recipe]: ")
    assert "method head tunes none" in ran.stderr
