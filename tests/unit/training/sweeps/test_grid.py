"""Laws of sweep files."""

from pathlib import Path

import pytest

from doubles.refusals import raises
from nunatak_training.sweeps.planning import read_grid

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


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


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
        ("a.yaml", YAML + "layer: 3", "layer: Extra inputs"),
        ("a.yaml", YAML.replace("kind: full", "kind: fully"), "methods.1: .*'fully'"),
        ("a.yaml", YAML.replace("kind: topk,", "kind: topk, layers: 2,"), "give one of them"),
        ("a.yaml", YAML.replace("kind: full", "kind: lora, rnk: 4"), "nearest is 'rank'"),
        ("a.yaml", YAML.replace("kind: full", "kind: full, rank: 4"), "belongs to method lora"),
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
