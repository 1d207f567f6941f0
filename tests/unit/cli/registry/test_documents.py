"""Laws of `nunatak policy` and `nunatak question`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from doubles.damage import write_rows
from doubles.drafts import CALIBRATION, make_draft
from doubles.terminals import nunatak
from nunatak_contract.evidence import ConfusionCell, ConfusionRecord
from nunatak_contract.wire import PolicyListing
from nunatak_registry import Registry

RULE = {
    "name": "attack",
    "conditions": [{"task": "intent", "labels": ["yes"], "threshold": 0.8}],
    "action": "block",
    "message": "This text is an attack.",
}
POLICY = {"name": "guard", "rules": [RULE]}
CARD = {
    "name": "urgent",
    "task": "intent",
    "question": {"type": "noul", "instructions": "Is it urgent?"},
}
Write = Callable[[Mapping[str, object]], str]


@pytest.fixture(name="write")
def make_writer(tmp_path: Path) -> Write:
    def write(document: Mapping[str, object]) -> str:
        (file := tmp_path / "document.json").write_text(json.dumps(document))
        return str(file)

    return write


@pytest.mark.parametrize(
    ("group", "listing", "document", "cells"),
    [
        ("policy", "policies", POLICY, "guard 1 enforce block attack (block) intent"),
        ("question", "questions", CARD, "urgent 1 predicate intent Is it urgent?"),
    ],
)
def test_a_document_is_checked_put_listed_and_shown(
    place: tuple[str, str],
    write: Write,
    group: str,
    listing: str,
    document: dict[str, Any],
    cells: str,
) -> None:
    name, file = document["name"], write(document)

    assert nunatak(group, "list", *place).stderr.startswith(f"no {listing} yet")
    assert nunatak(group, "check", file, *place).exit_code == 0
    put = nunatak(group, "put", file, *place)
    again = nunatak(group, "put", file, "--json", *place).json()
    listed = nunatak(group, "list", "--json", *place).json()
    shown = nunatak(group, "show", name, *place).stdout
    same = nunatak(group, "put", write(json.loads(shown)), *place)

    assert (put.exit_code, put.stdout) == (0, f"published {name}/1\n")
    assert (again.pop("changed"), again["version"]) == (False, 1)
    assert listed == {listing: [again]}
    assert same.stdout.startswith(f"{name}/1 was there already with the same content; nothing was")
    assert cells in " ".join(nunatak(group, "list", *place).stdout.split())


@pytest.mark.parametrize("command", ["put", "rollback"])
def test_a_damaged_newest_policy_is_superseded(
    place: tuple[str, str], write: Write, folder: Path, command: str
) -> None:
    for mode in ("enforce", "dry_run"):
        nunatak("policy", "put", write({**POLICY, "mode": mode}), *place)
    write_rows(folder, "UPDATE nunatak_policies SET document = '{}' WHERE version = ?", "2")

    subject = write(POLICY) if command == "put" else "guard"
    ran = nunatak("policy", command, subject, *place)

    assert ran.stdout == "published guard/3\n"


def test_yaml_and_json_say_the_same(place: tuple[str, str], write: Write, tmp_path: Path) -> None:
    (tmp_path / "guard.yaml").write_text(f"name: guard\nrules:\n  - {json.dumps(RULE)}\n")
    nunatak("policy", "put", str(tmp_path / "guard.yaml"), *place)

    ran = nunatak("policy", "put", write(POLICY), *place)

    assert ran.stdout == "guard/1 was there already with the same content; nothing was published\n"


def test_history_lists_the_versions_that_a_rollback_can_repeat(
    place: tuple[str, str], write: Write
) -> None:
    nunatak("policy", "put", write(POLICY), *place)
    nunatak("policy", "put", write({**POLICY, "mode": "dry_run"}), *place)

    back = nunatak("policy", "rollback", "guard", *place)
    same = nunatak("policy", "rollback", "guard/3", "--json", *place).json()
    old = nunatak("policy", "show", "guard/1", *place).stdout
    shown = nunatak("policy", "history", "guard", *place)
    listed = nunatak("policy", "history", "guard", "--json", *place).json()

    assert back.stdout == "published guard/3\n"
    assert (same["version"], same["changed"]) == (3, False)
    assert json.loads(old)["mode"] == "enforce"
    assert "dry_run" in shown.stdout
    assert "+00:00" not in shown.stdout
    listing = PolicyListing.model_validate({"policies": listed["versions"]})
    assert [it.policy.mode for it in listing.policies] == ["enforce", "dry_run", "enforce"]


def test_check_counts_the_dev_examples_that_each_label_would_have_caught(
    folder: Path, place: tuple[str, str], write: Write
) -> None:
    draft, blobs = make_draft(task="tone")
    cells = [("yes", "no", 2), ("no", "no", 7), ("yes", "yes", 41)]
    confusion = ConfusionRecord(
        data_digest="d" * 64,
        cells=tuple(ConfusionCell(truth=t, predicted=p, count=n) for t, p, n in cells),
    )
    evidence = {"calibration": CALIBRATION, "confusion": confusion}
    with Registry.open(folder) as opened:
        opened.publish(draft.model_copy(update=evidence), blobs)
    conditions = [
        *({"task": "tone", "labels": ["no"], "threshold": it} for it in (0.95, 0.8, 0.7)),
        {"task": "tone", "labels": ["no"]},
        {"task": "intent", "labels": ["no"]},
    ]
    file = write({**POLICY, "rules": [{**RULE, "conditions": conditions}]})

    found = nunatak("policy", "check", file, "--json", *place).json()
    printed = nunatak("policy", "check", file, *place).stdout

    rows = [(it["num_examples"], it["num_found"], it["num_right"]) for it in found["conditions"]]
    assert rows == [(200, 0, 0), (200, 10, 10), (200, 30, 27), (50, 9, 7), (None, None, None)]
    assert "attack tone/1 no 0.7 200 30 27" in " ".join(printed.split())
    assert "attack tone/1 no own 50 9 7" in " ".join(printed.split())


def test_check_names_all_errors_at_once(place: tuple[str, str], write: Write) -> None:
    conditions = [
        {"task": "intent", "labels": ["yes"], "threshold": 95.0},
        {"task": "intent", "labels": ["maybe"]},
        {"task": "absent", "labels": ["yes"]},
    ]
    file = write({**POLICY, "rules": [{**RULE, "conditions": conditions}]})

    ran = nunatak("policy", "check", file, *place)

    ran.assert_refused("invalid_policy", "95 percent is 0.95", "no label 'maybe'", "'absent'")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "name: expected a value, got none"),
        ("{", "file: Expecting property name"),
        pytest.param("[" * 100_000, "file: cannot be parsed", id="deep"),
        ('{"name": "a", "name": "b", "rules": []}', "file: 'name' stands twice"),
        (json.dumps({**POLICY, "on_error": "block"}), "on_error: there is no such field"),
        (json.dumps({**POLICY, "rules": [RULE, RULE]}), "rules: each rule must have"),
        (json.dumps(POLICY).replace('"block"', '"allow"'), "action: a rule must flag, mask or"),
        (json.dumps(POLICY).replace("0.8", '"0.8"'), "threshold: expected a number, got a text"),
        (json.dumps(POLICY).replace("0.8", "NaN"), "threshold: expected a finite number"),
        (json.dumps(POLICY).replace('"intent"', '"Intent!"'), "task: task name must be"),
        (json.dumps({**POLICY, "name": "My guard"}), "name: expected 1 to 64 lower-case letters"),
        (json.dumps(POLICY).replace('["yes"]', "[]"), "labels: expected at least 1"),
        (
            json.dumps(POLICY).replace('"conditions"', '"condition"'),
            "rules.0.condition: there is no such field, so remove it; docs/",
        ),
        (json.dumps(POLICY).replace("an attack", "a\\u001b[2J"), "message: a message must be"),
        (None, "file: cannot be read: No such file or directory"),
    ],
)
def test_a_malformed_policy_names_the_place(
    place: tuple[str, str], tmp_path: Path, content: str | None, problem: str
) -> None:
    file = tmp_path / "guard.json"
    if content is not None:
        file.write_text(content)

    nunatak("policy", "put", str(file), *place).assert_refused("invalid_policy_file", problem)


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
    place: tuple[str, str], write: Write, change: dict[str, object], said: str
) -> None:
    ran = nunatak("question", "put", write({**CARD, **change}), *place)

    ran.assert_refused("invalid_question_file", said, "docs/questions.md")


@pytest.mark.parametrize("name", ["yes", "No", "on", "off", "true"])
def test_a_name_that_yaml_changes_is_refused(
    place: tuple[str, str], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "urgent.yaml"
    criteria = f"criteria: {{{name}: It is, other: null}}"
    file.write_text(f"name: urgent\ntask: intent\nquestion: {{type: choice, {criteria}}}\n")

    ran = nunatak("question", "put", str(file), *place)

    ran.assert_refused("invalid_question_file", f"put `{name}` in quotation marks")


def test_instructions_are_listed_as_a_model_reads_them(
    place: tuple[str, str], write: Write
) -> None:
    question = {"type": "noul", "instructions": {"is": "it?", "so": None}}
    assert nunatak("question", "put", write({**CARD, "question": question}), *place).exit_code == 0

    assert '{"is": "it?", "so": null}' in nunatak("question", "list", *place).stdout


def test_a_copy_of_a_registry_has_its_policies(
    registry: Registry, folder: Path, place: tuple[str, str], write: Write, tmp_path: Path
) -> None:
    nunatak("policy", "put", write(POLICY), *place)

    first = nunatak("registry", "copy", str(folder), str(tmp_path / "b"), "--create")
    again = nunatak("registry", "copy", str(folder), str(tmp_path / "b"), "--json").json()

    assert first.stdout.endswith("policy guard: copied version 1\n")
    assert again["copied"][-1].items() >= {"policy": "guard", "versions": []}.items()
    with Registry.open(tmp_path / "b") as target:
        assert target.policies.get("guard") == registry.policies.get("guard")
