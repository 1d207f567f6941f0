"""Laws of `nunatak task show`, `versions` and `diff`."""

import getpass
import re
from pathlib import Path

import pytest

from doubles.damage import write_rows
from doubles.terminals import nunatak
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
    assert isinstance(found["properties"], dict)
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
    assert isinstance(listed["versions"], list)
    manifests = registry.versions("intent")
    assert [it["manifest"] for it in listed["versions"] if isinstance(it, dict)] == [
        it.model_dump(mode="json") for it in manifests
    ]
    second = listed["versions"][1]
    assert isinstance(second, dict)
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
