"""Laws of `nunatak question`."""

import json
from pathlib import Path

import pytest

from doubles.terminals import nunatak
from nunatak_registry import Registry

CARD = {
    "name": "urgent",
    "task": "intent",
    "question": {"type": "noul", "instructions": "Is it urgent?"},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "urgent.json"
    made.write_text(json.dumps(CARD))
    return made


def test_a_card_is_checked_put_listed_and_shown(
    registry: Registry, place: tuple[str, str], file: Path
) -> None:
    assert nunatak("question", "list", *place).stderr.startswith("no questions yet")
    checked = nunatak("question", "check", str(file), *place)
    assert (checked.exit_code, registry.questions.numbers()) == (0, {})

    put = nunatak("question", "put", str(file), *place)
    again = nunatak("question", "put", str(file), "--json", *place).json()
    listed = nunatak("question", "list", "--json", *place).json()
    shown = nunatak("question", "show", "urgent", *place)
    file.write_text(shown.stdout)
    same = nunatak("question", "put", str(file), *place)

    assert (put.exit_code, put.stdout) == (0, "published urgent/1\n")
    assert isinstance(again, dict)
    assert (again["version"], again["changed"]) == (1, False)
    match listed:
        case {"questions": [{"digest": digest, "card": {"name": "urgent"}}]}:  # pyrefly: ignore[not-callable]
            assert digest == again["digest"]
        case other:
            raise AssertionError(other)
    assert same.stdout.startswith("urgent/1 was there already")
    assert "Is it urgent?" in nunatak("question", "list", *place).stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": {"type": "noul"}}, "needs instructions or criteria"),
        ({"question": {"type": "choice", "criteria": {"a": None}}}, "2 to 255 options"),
        ({"labels": {"yes": "maybe"}}, "must mean an answer"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_card_is_refused_with_its_place(
    place: tuple[str, str], file: Path, change: dict[str, object], said: str
) -> None:
    file.write_text(json.dumps({**CARD, **change}))

    ran = nunatak("question", "put", str(file), *place)

    assert ran.exit_code == 1
    assert said in ran.stderr
    assert "docs/questions.md" in " ".join(ran.stderr.split())


@pytest.mark.parametrize("name", ["yes", "No", "on", "off", "true"])
def test_a_name_that_yaml_changes_is_refused(
    place: tuple[str, str], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "urgent.yaml"
    criteria = f"criteria: {{{name}: It is, other: null}}"
    file.write_text(f"name: urgent\ntask: intent\nquestion: {{type: choice, {criteria}}}\n")

    ran = nunatak("question", "put", str(file), *place)

    assert ran.exit_code == 1
    assert f"put `{name}` in quotation marks" in " ".join(ran.stderr.split())


def test_instructions_are_listed_as_a_model_reads_them(place: tuple[str, str], file: Path) -> None:
    question = {"type": "noul", "instructions": {"is": "it?", "so": None}}
    file.write_text(json.dumps({**CARD, "question": question}))
    assert nunatak("question", "put", str(file), *place).exit_code == 0

    assert '{"is": "it?", "so": null}' in nunatak("question", "list", *place).stdout
