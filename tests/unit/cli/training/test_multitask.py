"""Laws of the options of `nunatak multitask`."""

import json
from pathlib import Path

import pytest

from doubles.backbones import save_tiny_backbone
from doubles.examples import rows_of, toy_examples, write_jsonl
from doubles.terminals import nunatak
from nunatak_model import load_backbone


def test_command_writes_a_backbone_and_names_the_scores_of_every_task(tmp_path: Path) -> None:
    base = save_tiny_backbone(tmp_path / "base", num_layers=2)
    examples = write_jsonl(tmp_path / "toy.jsonl", rows_of(toy_examples(40)))
    arguments = [
        str(tmp_path / "shared"),
        "--backbone",
        str(base),
        "--epochs",
        "1",
        "--set",
        "max_length=32",
        "--json",
    ]

    result = nunatak(
        "multitask", *arguments, "--data", f"tone={examples}", "--data", f"intent={examples}"
    )

    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["digest"] == load_backbone(tmp_path / "shared").digest
    assert [*told["scores"]] == ["tone", "intent"]
    assert 0 <= told["scores"]["tone"]["accuracy"] <= 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--data", "tone"], "--data expects NAME=VALUE, got 'tone'"),
        (["--data", "tone=a", "--data", "tone=b"], "--data names 'tone' twice"),
        (["--data", "tone=a", "--kind", "tone=poem"], "kind must be one of"),
        (["--data", "tone=a", "--kind", "mood=ranking"], "one of tone before =, got 'mood'"),
    ],
)
def test_malformed_options_are_refused(arguments: list[str], problem: str, tmp_path: Path) -> None:
    result = nunatak("multitask", str(tmp_path / "shared"), *arguments)

    assert result.exit_code == 1
    assert problem in result.stderr
    assert not (tmp_path / "shared").exists()
