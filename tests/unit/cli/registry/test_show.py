"""Laws of `nunatak task show`, `versions` and `diff`."""

import getpass
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from doubles.damage import write_rows
from doubles.drafts import make_draft
from doubles.terminals import WIDE, nunatak
from nunatak_cli.main import app
from nunatak_contract.cards import task_card
from nunatak_contract.enums import CandidateRole
from nunatak_registry import Candidate, Registry


@pytest.mark.parametrize(
    ("reference", "shown"), [("intent", "intent/2"), ("intent@prod", "intent/2"), ("intent/3",) * 2]
)
def test_card_shows_the_version_that_the_reference_means(
    place: tuple[str, str], reference: str, shown: str
) -> None:
    ran = nunatak("task", "show", reference, *place)

    assert shown in ran.stdout
    for expected in ("no, yes", "2 of 2", "tiny", "[draft]", "10 (0 branch, 10 head)"):
        assert expected in ran.stdout


def test_card_as_json_is_the_manifest(place: tuple[str, str], registry: Registry) -> None:
    shown = nunatak("task", "show", "intent/1", "--json", *place).json()

    assert shown["manifest"] == registry.resolve("intent/1").model_dump(mode="json")
    assert shown["aliases"] == {"prod": 2}


def test_card_in_markdown_matches_the_registry(place: tuple[str, str], registry: Registry) -> None:
    shown = nunatak("task", "show", "intent/1", "--markdown", *place).stdout

    assert shown == task_card(registry.resolve("intent/1"))


def test_diff_as_json_names_what_differs(place: tuple[str, str]) -> None:
    found = nunatak("task", "diff", "intent/1", "intent/2", "--json", *place).json()

    assert (found["left"], found["right"], found["differing"]) == ("intent/1", "intent/2", [])
    assert found["properties"]["labels"] == {"left": ["no", "yes"], "right": ["no", "yes"]}


def test_versions_shows_when_each_was_published_and_where_its_aliases_are(
    place: tuple[str, str], registry: Registry
) -> None:
    candidate = Candidate(
        task="intent", alias="prod", role=CandidateRole.CANARY, version=3, share=0.25
    )
    registry.rollouts.set(candidate)
    day = f"{registry.listed_versions('intent')[0].published_at:%Y-%m-%d}"

    shown = nunatak("task", "versions", "intent", *place).stdout
    header, *rows = (re.split(r"\s{2,}", line.strip()) for line in shown.splitlines())

    assert header[:4] == ["version", "published", "aliases", "moved by"]
    assert [(row[0], row[1].split()[0]) for row in rows] == [(it, day) for it in "123"]
    assert [row[2:4] for row in rows] == [
        ["-", "-"],
        ["prod", getpass.getuser()],
        ["prod canary 25.00%", "-"],
    ]
    assert all(row[-1].endswith("bytes") for row in rows)


def test_versions_as_json_has_every_version_with_its_manifest(
    place: tuple[str, str], registry: Registry
) -> None:
    listed = nunatak("task", "versions", "intent", "--json", *place).json()

    assert listed["task"] == "intent"
    manifests = registry.versions("intent")
    assert [it["manifest"] for it in listed["versions"]] == [
        it.model_dump(mode="json") for it in manifests
    ]
    second = listed["versions"][1]
    (move,) = registry.history("intent", "prod")[-1:]
    assert second["aliases"] == [{"alias": "prod", "since": move.at.isoformat(), "by": move.by}]
    assert second["stored_bytes"] == manifests[1].blobs[0].size_bytes


def test_versions_lists_a_damaged_version_too(
    place: tuple[str, str], registry: Registry, folder: Path
) -> None:
    assert registry.tasks()
    write_rows(folder, "UPDATE nunatak_versions SET manifest = '{}' WHERE version = ?", "2")

    ran = nunatak("task", "versions", "intent", *place)

    assert ran.exit_code == 0
    assert "damaged" in ran.stdout.splitlines()[2]
    for command in (["show", "intent/1"], ["history", "intent"]):
        assert nunatak("task", *command, *place).exit_code == 0


def test_list_shows_what_the_bare_name_serves_and_candidates_next_to_their_alias(
    place: tuple[str, str],
) -> None:
    nunatak("task", "canary", "intent/3", "--share", "0.2", "--unprobed", *place)

    shown = nunatak("task", "list", *place).stdout

    assert shown.split("\n")[1].split()[:4] == ["intent", "2", "of", "3"]
    assert "prod = 2 (canary 3: 20%)" in shown


def test_a_narrow_list_cuts_no_name(registry: Registry, place: tuple[str, str]) -> None:
    name = "intent-of-" * 4 + "chats"
    registry.publish(*make_draft(name))
    nunatak("task", "canary", "intent/3", "--share", "0.2", "--unprobed", *place)

    narrow = CliRunner().invoke(app, ["task", "list", *place], env={**WIDE, "COLUMNS": "80"})
    assert name in narrow.stdout


def test_list_as_json_has_the_shape_of_the_server(place: tuple[str, str]) -> None:
    assert nunatak("task", "list", "--json", *place).json() == {
        "tasks": [
            {
                "name": "intent",
                "version": 2,
                "versions": [1, 2, 3],
                "aliases": {"prod": 2},
                "candidates": [],
                "head": "sequence_classification",
                "labels": ["no", "yes"],
                "reads": None,
                "method": "head",
                "split_depth": 2,
            }
        ]
    }


def test_empty_registry_says_what_to_do(tmp_path: Path) -> None:
    Registry.open(tmp_path).close()

    ran = nunatak("task", "list", "--registry", str(tmp_path))

    assert ran.exit_code == 0
    assert ran.stdout == ""
    assert "nunatak train" in ran.stderr


def test_history_says_by_whom(place: tuple[str, str]) -> None:
    found = nunatak("task", "history", "intent", "--alias", "prod", "--json", *place).json()

    assert [event["by"] for event in found["events"]] == [getpass.getuser()] * 2


def test_history_without_aliases_says_so(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        registry.publish(*make_draft())

    ran = nunatak("task", "history", "intent", "--registry", str(tmp_path))

    assert ran.exit_code == 0
    assert "newest version" in ran.stderr


def test_promote_to_the_version_that_the_alias_has_says_that_nothing_moved(
    place: tuple[str, str], registry: Registry
) -> None:
    before = registry.generation()

    shown = nunatak("task", "promote", "intent/2", "--unprobed", *place)
    told = nunatak("task", "promote", "intent/2", "--unprobed", "--json", *place)

    assert shown.stdout == "intent@prod -> version 2 (it was there already; nothing moved)\n"
    assert told.json()["moved"] is False
    assert registry.generation() == before


def test_new_alias_is_made_by_promoting(place: tuple[str, str]) -> None:
    moved = nunatak(
        *("task", "promote", "intent/3", "--alias", "canary", "--expect", "0"),
        *("--unprobed", "--json", *place),
    ).json()

    assert (moved["alias"], moved["version"], moved["previous_version"]) == ("canary", 3, None)


def test_gc_spares_what_was_in_use_within_the_grace_period(
    place: tuple[str, str], registry: Registry
) -> None:
    held = registry.resolve("intent/3")
    registry.delete("intent", 3)

    assert nunatak("task", "gc", *place).stdout == (
        "removed 0 blobs and 0 temporary files; 1 too young\n"
    )
    assert registry.read_blob(held)


def test_gc_removes_what_no_version_needs(place: tuple[str, str], registry: Registry) -> None:
    digest = registry.resolve("intent/3").blobs[0].sha256
    registry.delete("intent", 3)

    assert nunatak("task", "gc", "--grace", "0", "--json", *place).json() == {
        "removed_blobs": [digest],
        "removed_temporary": 0,
        "kept_young": 0,
    }
    assert registry.verify() == []


def test_delete_asks_first(place: tuple[str, str], registry: Registry) -> None:
    refused = nunatak("task", "delete", "intent/3", *place, typed="n\n")
    assert refused.exit_code == 1
    unasked = nunatak("task", "delete", "intent/3", *place)
    assert "error [invalid_option]: intent/3 stays: give --yes to delete it" in unasked.stderr
    assert registry.task("intent").versions == (1, 2, 3)

    agreed = nunatak("task", "delete", "intent/3", *place, typed="y\n")
    assert agreed.stdout.endswith("deleted intent/3\n")
    assert registry.task("intent").versions == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "nope"), "task_not_found"),
        (("show", "intent/9"), "version_not_found"),
        (("show", "intent@nope"), "alias_not_found"),
        (("show", "../etc"), "invalid_name"),
        (("promote", "intent/9"), "version_not_found"),
        (("promote", "intent@prod"), "invalid_option"),
        (("delete", "intent/9", "--yes"), "version_not_found"),
        (("delete", "intent/2", "--yes"), "version_in_use"),
        (("promote", "intent/3", "--expect", "1", "--unprobed"), "alias_conflict"),
        (("import", "./nowhere", "--task", "x"), "invalid_folder"),
        (("import", ".", "--task", "../x"), "invalid_name"),
        (("pull", ".", "--promote", "../x"), "invalid_name"),
        (("pull", "./nowhere"), "invalid_folder"),
    ],
)
def test_errors_are_one_line_with_their_code(
    place: tuple[str, str], arguments: tuple[str, ...], code: str
) -> None:
    ran = nunatak("task", *arguments, *place)

    ran.assert_refused(code)
