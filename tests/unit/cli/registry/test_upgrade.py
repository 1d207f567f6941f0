"""Laws of `nunatak registry upgrade`."""

from pathlib import Path

import pytest

from doubles.damage import write_rows
from doubles.golden import put_in_folder, rows_of
from doubles.terminals import nunatak


@pytest.fixture
def old(tmp_path: Path) -> str:
    return put_in_folder("1", tmp_path / "old")


def test_a_line_for_each_step_then_nothing_to_do(old: str) -> None:
    first = nunatak("registry", "upgrade", "--registry", old)
    again = nunatak("registry", "upgrade", "--registry", old)

    lines = first.stderr.splitlines()
    (copy,) = Path(old).glob("index-layout-1-*.sqlite3")
    assert lines[0] == f"upgrade: the index as it was: {copy}"
    assert [line.split(": ")[1] for line in lines[1:]] == ["layout 1 -> 2", "layout 2 -> 3"]
    assert first.stdout == "the index has layout 3 now; 3 versions kept\n"
    assert (again.exit_code, again.stdout) == (0, "nothing to do: the index has layout 3\n")


def test_a_rehearsal_says_that_it_changed_nothing(old: str) -> None:
    before = rows_of(old)

    ran = nunatak("registry", "upgrade", "--registry", old, "--dry-run")

    assert ran.stdout.splitlines()[-1] == "a copy has layout 3 now; the registry is unchanged"
    assert rows_of(old) == before


def test_quiet_prints_nothing_and_json_one_document(old: str, tmp_path: Path) -> None:
    rehearsed = nunatak("registry", "upgrade", "--registry", old, "--dry-run", "--json").json()
    done = nunatak("registry", "upgrade", "--registry", old, "--json").json()
    again = nunatak("registry", "upgrade", "--registry", old, "--json", "--quiet").json()
    other = put_in_folder("1", tmp_path / "other")
    options = ("--registry", other, "--quiet", "--backup", str(tmp_path))
    quiet = nunatak("registry", "upgrade", *options)

    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    assert len(list(tmp_path.glob("index-layout-1-*.sqlite3"))) == 1
    assert rehearsed == {
        "found": "1",
        "layout": "3",
        "steps": ["2", "3"],
        "backup": None,
        "num_versions": 3,
        "unreadable": [],
        "dry_run": True,
    }
    (copy,) = Path(old).glob("index-layout-1-*.sqlite3")
    assert done == {**rehearsed, "backup": str(copy), "dry_run": False}
    assert again == {**rehearsed, "found": "3", "steps": [], "dry_run": False}


def test_commands_on_an_older_layout_name_the_upgrade(old: str) -> None:
    ran = nunatak("task", "list", "--registry", old)

    assert ran.exit_code == 1
    assert "layout 1" in ran.stderr
    assert "`nunatak registry upgrade`" in ran.stderr


def test_a_manifest_that_cannot_be_read_is_named(old: str) -> None:
    write_rows(Path(old), "UPDATE nunatak_versions SET manifest = ? WHERE task = ?", "{}", "topic")

    ran = nunatak("registry", "upgrade", "--registry", old)

    assert ran.exit_code == 1
    assert "topic/1" in ran.stderr
    assert rows_of(old)["nunatak_state"][0]["schema_version"] == 3


def test_quiet_copy_prints_only_failures(old: str, tmp_path: Path) -> None:
    nunatak("registry", "upgrade", "--registry", old)

    ran = nunatak("registry", "copy", old, str(tmp_path / "new"), "--create", "--quiet")

    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "")
    assert nunatak("task", "list", "--registry", str(tmp_path / "new")).stdout.count("\n") >= 3
