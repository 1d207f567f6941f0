"""Laws of the options of `nunatak train`; training itself is tried end to end."""

from enum import StrEnum
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.terminals import nunatak
from nunatak_cli import options as cli
from nunatak_cli.options import MethodName
from nunatak_cli.training import method_of
from nunatak_model import (
    Bottleneck,
    Full,
    HeadOnly,
    InvalidMethodError,
    Lora,
    LoraTarget,
    Method,
    TopK,
)
from nunatak_training import Metric, TaskKind, recipes, regularizers

CONFIG = tiny_backbone(num_layers=3).config


@pytest.mark.parametrize(
    ("name", "settings", "method"),
    [
        (MethodName.TOPK, {}, TopK()),
        (MethodName.TOPK, {"layers": 3}, TopK(num_layers=3)),
        (MethodName.TOPK, {"frozen": 1}, TopK(num_layers=2)),
        (MethodName.TOPK, {"frozen": 0}, TopK(num_layers=3)),
        (MethodName.TOPK, {"frozen": 3}, HeadOnly()),
        (MethodName.HEAD, {}, HeadOnly()),
        (MethodName.BOTTLENECK, {"size": 8, "first_layer": 2}, Bottleneck(size=8, first_layer=2)),
        (MethodName.LORA, {"rank": 4, "alpha": 8.0}, Lora(rank=4, alpha=8.0)),
        (
            MethodName.LORA,
            {"targets": "query, feedforward_in"},
            Lora(targets=(LoraTarget.QUERY, LoraTarget.FEEDFORWARD_IN)),
        ),
        (MethodName.FULL, {}, Full()),
    ],
)
def test_options_become_the_method(
    name: MethodName, settings: dict[str, float | str], method: Method
) -> None:
    assert method_of(name, settings, CONFIG) == method


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        (MethodName.TOPK, {"frozen": 4}, r"frozen layers must be in \[0, 3\], got 4"),
        (MethodName.LORA, {"targets": "query,head"}, "lora targets must be of .*, got 'head'"),
    ],
)
def test_options_that_fit_no_backbone_are_refused(
    name: MethodName, settings: dict[str, float | str], problem: str
) -> None:
    with pytest.raises(InvalidMethodError, match=problem):
        method_of(name, settings, CONFIG)


@pytest.mark.parametrize(
    ("arguments", "owner"),
    [
        (("--rank", "4"), "lora"),
        (("--method", "lora", "--layers", "2"), "topk"),
        (("--method", "head", "--frozen", "2"), "topk"),
        (("--targets", "query"), "lora"),
        (("--method", "head", "--first-layer", "2"), "bottleneck and lora"),
    ],
)
def test_option_of_another_method_is_a_usage_error(
    tmp_path: Path, arguments: tuple[str, ...], owner: str
) -> None:
    place = ("--registry", str(tmp_path / "registry"))

    ran = nunatak("train", "--task", "tone", "--data", "x.jsonl", *place, *arguments)

    assert ran.exit_code == 2
    assert f"belongs to --method {owner}" in ran.stderr
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("choices", "known"),
    [
        (cli.RegularizerName, regularizers.RegularizerName),
        (cli.MetricName, Metric),
        (cli.KindName, TaskKind),
        (cli.OptimizerName, recipes.Optimizer),
        (cli.ScheduleName, recipes.Schedule),
    ],
)
def test_choices_of_the_command_are_those_of_training(
    choices: type[StrEnum], known: type[StrEnum]
) -> None:
    assert [*choices] == [*known]


def test_layers_and_frozen_exclude_each_other() -> None:
    ran = nunatak("train", "--task", "a", "--data", "x.jsonl", "--layers", "1", "--frozen", "1")

    assert ran.exit_code == 2
    assert "give one of them" in ran.stderr


def test_rate_without_a_regularizer_is_a_usage_error() -> None:
    ran = nunatak("train", "--task", "tone", "--data", "x.jsonl", "--regularizer-rate", "0.1")

    assert ran.exit_code == 2
    assert "belongs to --regularizer" in ran.stderr


def test_senseless_regularizer_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "toy.jsonl", rows_of(toy_examples(40)))

    ran = nunatak(
        *("train", "--task", "tone", "--data", str(data), "--method", "head"),
        *("--regularizer", "graddrop", "--registry", str(tmp_path / "registry")),
    )

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [invalid_recipe]: ")
    assert "method head tunes none" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--layers", "some"), "must be a number from 1 up or auto, got 'some'"),
        (("--layers", "0"), "must be a number from 1 up or auto"),
        (("--target", "0.9"), "--target belongs to --layers auto"),
        (("--layers", "2", "--target", "0.9"), "--target belongs to --layers auto"),
        (("--layers", "auto", "--target", "1.5"), "must be above 0 and at most 1"),
        (("--layers", "auto", "--method", "lora"), "belongs to --method topk"),
        (("--layers", "auto", "--frozen", "2"), "without --frozen"),
    ],
)
def test_layers_and_target_that_make_no_sense_are_usage_errors(
    arguments: tuple[str, ...], problem: str
) -> None:
    ran = nunatak("train", "--task", "tone", "--data", "x.jsonl", *arguments)

    assert ran.exit_code == 2
    assert problem in " ".join(ran.stderr.replace("│", " ").split())
