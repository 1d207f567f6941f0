"""Laws of `nunatak task`: what versions are, how they score, candidates, and checks."""

import getpass
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from doubles.backbones import save_tiny_backbone
from doubles.damage import write_rows
from doubles.drafts import CALIBRATION, make_draft
from doubles.terminals import WIDE, nunatak
from nunatak_cli.main import app
from nunatak_contract.cards import task_card
from nunatak_contract.enums import CandidateRole
from nunatak_contract.evidence import wilson_bounds
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


def test_gc_removes_what_no_version_needs_after_the_grace_period(
    place: tuple[str, str], registry: Registry
) -> None:
    held = registry.resolve("intent/3")
    registry.delete("intent", 3)

    spared = nunatak("task", "gc", *place).stdout
    assert spared == "removed 0 blobs and 0 temporary files; 1 too young\n"
    assert registry.read_blob(held)
    assert nunatak("task", "gc", "--grace", "0", "--json", *place).json() == {
        "removed_blobs": [held.blobs[0].sha256],
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


@pytest.fixture(name="calibrated")
def publish_calibrated(folder: Path) -> tuple[str, str]:
    draft, blobs = make_draft()
    with Registry.open(folder) as registry:
        registry.publish(draft.model_copy(update={"calibration": CALIBRATION}), blobs)
    return ("--registry", str(folder))


def lines(printed: str) -> list[str]:
    """The lines with one space between words."""
    return [" ".join(line.split()) for line in printed.splitlines()]


def test_each_label_has_the_threshold_of_its_largest_f1(calibrated: tuple[str, str]) -> None:
    header, first, second, *_ = lines(nunatak("task", "thresholds", "intent", *calibrated).stdout)

    assert header == "label threshold precision recall found right labelled"
    assert first == "no 0.7 0.900 [0.74, 0.97] 0.675 [0.52, 0.80] 30 27 40"
    assert second == "yes no dev example 0"


@pytest.mark.parametrize(
    ("wish", "threshold"),
    [
        (("--precision", "0.95"), 0.9),
        (("--recall", "0.9"), 0.2),
        (("--precision", "0.5", "--recall", "0.5"), 0.7),
    ],
)
def test_a_wish_gives_the_threshold_that_reaches_it(
    calibrated: tuple[str, str], wish: tuple[str, ...], threshold: float
) -> None:
    found = nunatak("task", "thresholds", "intent", *wish, "--json", *calibrated).json()

    first, second = found["labels"]
    (point,) = first["points"]
    assert point["threshold"] == threshold
    (expected,) = (it for it in CALIBRATION.curves[0].operating_points if it.threshold == threshold)
    assert point["precision_interval"] == list(
        wilson_bounds(expected.precision, expected.num_found)
    )
    assert second["points"] == []


def test_a_wish_out_of_reach_is_said(calibrated: tuple[str, str]) -> None:
    wish = ("--precision", "0.5", "--recall", "0.9")

    _, first, *_ = lines(nunatak("task", "thresholds", "intent", *wish, *calibrated).stdout)

    assert first == "no not reached 40"


def test_a_named_label_has_all_its_thresholds(calibrated: tuple[str, str]) -> None:
    printed = nunatak("task", "thresholds", "intent", "--label", "no", *calibrated).stdout

    found = [line.split()[:2] for line in lines(printed)[1:4]]
    assert found == [["no", "0.9"], ["no", "0.7"], ["no", "0.2"]]


def test_an_unknown_label_and_an_uncalibrated_version_are_refused(
    calibrated: tuple[str, str], folder: Path
) -> None:
    with Registry.open(folder) as registry:
        registry.publish(*make_draft("plain"))

    unknown = nunatak("task", "thresholds", "intent", "--label", "maybe", *calibrated)
    plain = nunatak("task", "thresholds", "plain", *calibrated)

    unknown.assert_refused("invalid_option", "--label expects one of 'no', 'yes', got 'maybe'")
    plain.assert_refused("invalid_option", "trained with --calibrate")


def test_show_says_temperature_and_errors_and_draws_the_reliability(
    calibrated: tuple[str, str],
) -> None:
    shown = " ".join(nunatak("task", "show", "intent", *calibrated).stdout.split())
    card = nunatak("task", "show", "intent", "--markdown", *calibrated).stdout

    assert "temperature 2.500; expected calibration error dev 0.250 -> 0.050" in shown
    assert "| dev | 200 | 0.2500 | 0.0500 |" in card
    bars = re.findall(r"^ *(0\.\d+)  ([#| ]{41})  (0\.\d+) +(\d+)$", card, re.MULTILINE)
    assert [(score, right, count) for score, _, right, count in bars] == [
        ("0.950", "0.700", "200"),
        ("0.600", "0.500", "50"),
        ("0.750", "0.800", "150"),
    ]
    for score, bar, right, _ in bars:
        assert bar.index("|") == round(float(score) * 40)
        assert bar.replace("|", "#").rstrip().startswith("#" * round(float(right) * 40))
    assert "| no | 0.7 | 0.900 | 0.675 | 0.771 | 40 |" in card


VERSION = ("intent/3", "--share", "0.1", "--unprobed")


@pytest.mark.parametrize("role", ["canary", "shadow"])
def test_a_candidate_is_set_and_ended(
    registry: Registry, place: tuple[str, str], role: str
) -> None:
    ran = nunatak("task", role, *VERSION, *place)

    assert (ran.exit_code, ran.stdout) == (
        0,
        f"intent@prod has {role} version 3 on 10.00% of its requests\n",
    )
    again = nunatak("task", role, *VERSION, *place)
    assert again.stdout.endswith("on 10.00% of its requests already; nothing changed\n")
    (found,) = registry.task("intent").candidates
    assert (found.role, found.version, found.share) == (role, 3, 0.1)

    ended = nunatak("task", role, "intent", "--end", "--expect", "3", "--json", *place).json()

    assert (ended["kind"], ended["version"]) == ("end", 3)
    assert registry.task("intent").candidates == ()


def test_a_shadow_runs_on_all_requests_by_default(
    registry: Registry, place: tuple[str, str]
) -> None:
    nunatak("task", "shadow", "intent/1", "--unprobed", *place)

    assert registry.task("intent").candidates[0].share == 1.0


def test_the_history_shows_what_ran_next_to_the_alias(
    registry: Registry, place: tuple[str, str]
) -> None:
    nunatak("task", "canary", *VERSION, *place)
    registry.promote("intent", "prod", 3)

    shown = nunatak("task", "history", "intent", *place).stdout.splitlines()[1:]
    of_alias = nunatak("task", "history", "intent", "--alias", "prod", "--json", *place).json()

    assert [" ".join(line.split()[2:-1]) for line in shown] == [
        "prod promote - 1",
        "prod promote 1 2",
        "prod canary - 3 (10.00%)",
        "prod promote 2 3",
        "prod canary end 3 -",
    ]
    assert {line.split()[-1] for line in shown} == {getpass.getuser()}
    told = [*of_alias["events"], *of_alias["candidates"]]
    assert [it["by"] for it in told] == [getpass.getuser()] * 5


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("canary", "intent/3"), "invalid_option"),
        (("canary", "intent", "--share", "0.1"), "invalid_option"),
        (("canary", "intent", "--end", "--share", "0.1"), "invalid_option"),
        (("canary", "intent/3", "--end"), "invalid_option"),
        (("shadow", "intent"), "invalid_option"),
        (("shadow", "intent", "--report"), "invalid_option"),
        (("shadow", "intent", "--report", "--server", "http://x", "--end"), "invalid_option"),
        (("shadow", "intent/3", "--server", "http://x", "--unprobed"), "invalid_option"),
        (("canary", "intent", "--end"), "candidate_not_found"),
        (("canary", *VERSION, "--expect", "1"), "candidate_conflict"),
        (("canary", "intent/2", "--share", "1", "--unprobed"), "invalid_candidate"),
    ],
)
def test_what_makes_no_sense_is_refused(
    place: tuple[str, str], arguments: tuple[str, ...], code: str
) -> None:
    nunatak("task", *arguments, *place).assert_refused(code)


def test_verify_of_a_whole_registry_finds_nothing(place: tuple[str, str]) -> None:
    assert nunatak("task", "verify", *place).exit_code == 0
    found = nunatak("task", "verify", "intent", "--json", *place).json()
    assert found == {"errors": 0, "checks": []}


def test_a_damaged_manifest_is_named_and_the_other_versions_are_probed(
    place: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    write_rows(folder, "UPDATE nunatak_versions SET manifest = '{}' WHERE version = ?", "2")
    other = save_tiny_backbone(tmp_path / "other")

    ran = nunatak("task", "verify", "--probe", "--backbone", str(other), "--json", *place)

    kinds = {it["subject"]: it["kind"] for it in ran.json()["checks"]}
    assert kinds["intent/1"] == kinds["intent/3"] == "not_probed"
    assert kinds["intent/2"] not in {"", "not_probed"}


def test_verify_names_the_damaged_version_fails_and_moves_its_file_aside_on_request(
    place: tuple[str, str], registry: Registry, folder: Path
) -> None:
    digest = registry.resolve("intent/1").blobs[0].sha256
    (blob,) = folder.glob(f"blobs/**/{digest}")
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")

    ran = nunatak("task", "verify", *place)
    assert ran.exit_code == 1
    assert "intent/1" in ran.stdout
    assert blob.exists()

    ran = nunatak("task", "verify", "--quarantine", "--json", *place)
    assert (ran.exit_code, ran.json()["errors"]) == (1, 1)
    assert "moved to quarantine/" in ran.stdout
    assert not blob.exists()
    (moved,) = folder.glob(f"blobs/quarantine/*/{digest}")
    assert moved.read_bytes() == b"damaged"
