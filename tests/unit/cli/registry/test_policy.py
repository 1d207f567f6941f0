"""Laws of `nunatak policy`."""

import json
from pathlib import Path
from typing import cast

import pytest

from doubles.damage import write_rows
from doubles.drafts import make_draft
from doubles.terminals import nunatak
from nunatak_contract.evidence import (
    CalibrationRecord,
    ConfusionCell,
    ConfusionRecord,
    ReliabilityBin,
    ReliabilityRecord,
    ThresholdCurve,
)
from nunatak_contract.wire import PolicyListing
from nunatak_registry import Registry

RULE = {
    "name": "attack",
    "conditions": [{"task": "intent", "labels": ["yes"], "threshold": 0.8}],
    "action": "block",
    "message": "This text is an attack.",
}
DOCUMENT = {"name": "guard", "rules": [RULE]}
YAML = """
name: guard
rules:
  - name: attack
    conditions:
      - {task: intent, labels: ["yes"], threshold: 0.8}
    action: block
    message: This text is an attack.
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "guard.json"
    made.write_text(json.dumps(DOCUMENT))
    return made


def test_put_publishes_and_says_if_there_was_nothing_to_publish(
    registry: Registry, place: tuple[str, str], file: Path
) -> None:
    ran = nunatak("policy", "put", str(file), *place)
    again = nunatak("policy", "put", str(file), "--json", *place).json()

    assert (ran.exit_code, ran.stdout) == (0, "published guard/1\n")
    assert isinstance(again, dict)
    assert (again["version"], again["changed"]) == (1, False)
    assert registry.policies.get("guard").document.rules[0].conditions[0].threshold == 0.8


@pytest.mark.parametrize("command", ["put", "rollback"])
def test_a_damaged_newest_policy_is_superseded(
    place: tuple[str, str], file: Path, folder: Path, command: str
) -> None:
    for mode in ("enforce", "dry_run"):
        file.write_text(json.dumps({**DOCUMENT, "mode": mode}))
        nunatak("policy", "put", str(file), *place)
    write_rows(folder, "UPDATE nunatak_policies SET document = '{}' WHERE version = ?", "2")

    subject = str(file) if command == "put" else "guard"
    ran = nunatak("policy", command, subject, *place)

    assert ran.stdout == "published guard/3\n"


def test_yaml_and_json_say_the_same(
    registry: Registry, place: tuple[str, str], file: Path, tmp_path: Path
) -> None:
    (tmp_path / "guard.yaml").write_text(YAML)
    nunatak("policy", "put", str(tmp_path / "guard.yaml"), *place)

    ran = nunatak("policy", "put", str(file), *place)

    assert ran.stdout == "guard/1 was there already with the same content; nothing was published\n"
    assert registry.policies.numbers() == {"guard": 1}


def test_history_lists_the_versions_that_a_rollback_can_repeat(
    place: tuple[str, str], file: Path
) -> None:
    nunatak("policy", "put", str(file), *place)
    file.write_text(json.dumps({**DOCUMENT, "mode": "dry_run"}))
    nunatak("policy", "put", str(file), *place)

    back = nunatak("policy", "rollback", "guard", *place)
    same = nunatak("policy", "rollback", "guard", "--to", "3", "--json", *place).json()
    (file.parent / "old.json").write_text(
        nunatak("policy", "show", "guard", "--version", "1", *place).stdout
    )
    old = nunatak("policy", "put", str(file.parent / "old.json"), *place)
    shown = nunatak("policy", "history", "guard", *place)
    listed = nunatak("policy", "history", "guard", "--json", *place).json()

    assert back.stdout == "published guard/3\n"
    assert old.stdout.startswith("guard/3 was there already with the same content")
    assert isinstance(same, dict)
    assert (same["version"], same["changed"]) == (3, False)
    assert "dry_run" in shown.stdout
    listing = PolicyListing.model_validate({"policies": listed["versions"]})
    assert [it.policy.mode for it in listing.policies] == ["enforce", "dry_run", "enforce"]


def test_list_shows_the_newest_versions(place: tuple[str, str], file: Path) -> None:
    assert nunatak("policy", "list", *place).stderr.startswith("no policies yet")
    nunatak("policy", "put", str(file), *place)

    shown = nunatak("policy", "list", *place).stdout

    assert all(it in shown for it in ("guard", "enforce", "attack (block)", "intent"))
    listed = nunatak("policy", "list", "--json", *place).json()
    match listed:
        case {"policies": [{"version": 1, "policy": {"name": "guard"}}]}:  # pyrefly: ignore[not-callable]
            pass
        case other:
            raise AssertionError(other)


def test_check_counts_the_dev_examples_that_each_label_would_have_caught(
    folder: Path, place: tuple[str, str], file: Path
) -> None:
    draft, blobs = make_draft(task="tone")
    curve = ThresholdCurve(label="yes", num_expected=9, points=((0.9, 3, 3), (0.7, 10, 8)))
    reliability = ReliabilityRecord(
        data_digest="d" * 64,
        num_examples=50,
        error_before=0.1,
        error_after=0.1,
        bins_before=(ReliabilityBin(count=50, score=0.9, share_right=0.9),),
        bins_after=(ReliabilityBin(count=50, score=0.9, share_right=0.9),),
    )
    other = ThresholdCurve(label="no", num_expected=0, points=())
    calibration = CalibrationRecord(temperature=1.0, dev=reliability, curves=(other, curve))
    cells = (
        ConfusionCell(truth="no", predicted="yes", count=2),
        ConfusionCell(truth="yes", predicted="yes", count=7),
        ConfusionCell(truth="no", predicted="no", count=41),
    )
    evidence = {
        "calibration": calibration,
        "confusion": ConfusionRecord(data_digest="d" * 64, cells=cells),
    }
    with Registry.open(folder) as opened:
        opened.publish(draft.model_copy(update=evidence), blobs)
    conditions = [
        *({"task": "tone", "labels": ["yes"], "threshold": it} for it in (0.95, 0.8, 0.7)),
        {"task": "tone", "labels": ["yes"]},
        {"task": "intent", "labels": ["yes"]},
    ]
    file.write_text(json.dumps({**DOCUMENT, "rules": [{**RULE, "conditions": conditions}]}))

    found = nunatak("policy", "check", str(file), "--json", *place).json()
    printed = nunatak("policy", "check", str(file), *place).stdout
    with Registry.open(folder) as opened:
        assert opened.policies.numbers() == {}

    conditions = cast("dict[str, list[dict[str, object]]]", found)["conditions"]
    rows = [(it["num_examples"], it["num_found"], it["num_right"]) for it in conditions]
    assert rows == [(50, 0, 0), (50, 3, 3), (50, 10, 8), (50, 9, 7), (None, None, None)]
    assert "attack tone/1 yes 0.7 50 10 8" in " ".join(printed.split())
    assert "attack tone/1 yes own 50 9 7" in " ".join(printed.split())


def test_check_names_all_errors_at_once(
    registry: Registry, place: tuple[str, str], file: Path
) -> None:
    conditions = [
        {"task": "intent", "labels": ["yes"], "threshold": 95.0},
        {"task": "intent", "labels": ["maybe"]},
        {"task": "absent", "labels": ["yes"]},
    ]
    file.write_text(json.dumps({**DOCUMENT, "rules": [{**RULE, "conditions": conditions}]}))

    ran = nunatak("policy", "check", str(file), *place)

    assert registry.policies.numbers() == {}
    for problem in ("95 percent is 0.95", "no label 'maybe'", "'absent'"):
        assert problem in ran.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "name: expected a value, got none"),
        ("{", "file: Expecting property name"),
        pytest.param("[" * 100_000, "file: cannot be parsed", id="deep"),
        ('{"name": "a", "name": "b", "rules": []}', "file: 'name' stands twice"),
        (json.dumps({**DOCUMENT, "on_error": "block"}), "on_error: there is no such field"),
        (json.dumps({**DOCUMENT, "rules": [RULE, RULE]}), "rules: each rule must have"),
        (json.dumps(DOCUMENT).replace('"block"', '"allow"'), "action: a rule must flag, mask or"),
        (json.dumps(DOCUMENT).replace("0.8", '"0.8"'), "threshold: expected a number, got a text"),
        (json.dumps(DOCUMENT).replace("0.8", "NaN"), "threshold: expected a finite number"),
        (json.dumps(DOCUMENT).replace('"intent"', '"Intent!"'), "task: task name must be"),
        (json.dumps(DOCUMENT).replace('["yes"]', "[]"), "labels: expected at least 1"),
        (
            json.dumps(DOCUMENT).replace('"conditions"', '"condition"'),
            "rules.0.condition: there is no such field, so remove it; docs/",
        ),
        (json.dumps(DOCUMENT).replace("an attack", "a\\u001b[2J"), "message: a message must be"),
    ],
)
def test_a_malformed_policy_names_the_place(
    place: tuple[str, str], file: Path, content: str, problem: str
) -> None:
    file.write_text(content)

    ran = nunatak("policy", "put", str(file), *place)
    file.unlink()
    gone = nunatak("policy", "put", str(file), *place)

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [invalid_policy_file]: ")
    assert problem in ran.stderr
    assert "file: cannot be read: No such file or directory" in gone.stderr


def test_a_copy_of_a_registry_has_its_policies(
    registry: Registry, folder: Path, place: tuple[str, str], file: Path, tmp_path: Path
) -> None:
    nunatak("policy", "put", str(file), *place)

    first = nunatak("registry", "copy", str(folder), str(tmp_path / "b"), "--create")
    again = nunatak("registry", "copy", str(folder), str(tmp_path / "b"), "--json").json()

    assert first.stdout.endswith("policy guard: copied version 1\n")
    match again:
        case {"copied": [*_, {"policy": "guard", "versions": []}]}:  # pyrefly: ignore[not-callable]
            pass
        case other:
            raise AssertionError(other)
    with Registry.open(tmp_path / "b") as target:
        assert target.policies.get("guard") == registry.policies.get("guard")
