"""Laws of the options of `nunatak loadtest`; the run itself is tried end to end."""

from pathlib import Path

from doubles.terminals import nunatak

NOBODY = ("--server", "http://127.0.0.1:9")


def test_server_that_is_not_there_is_one_line() -> None:
    ran = nunatak("loadtest", "run", "--task", "tone", *NOBODY, "--json")

    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("error [connection_failed]: ")


def test_text_file_is_read_before_anything_else(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.txt")

    ran = nunatak("loadtest", "run", "--task", "tone", *NOBODY, "--text-file", absent, "--json")

    assert ran.stderr.startswith(f"error [unreadable_file]: {absent}: cannot be read")


def test_scenarios_are_listed_with_what_they_are() -> None:
    ran = nunatak("loadtest", "scenarios")

    assert "fanout8    Eight of up to sixteen tasks about every text" in ran.stdout


def test_unknown_scenario_is_one_line() -> None:
    ran = nunatak("loadtest", "run", "absent", *NOBODY)

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error [invalid_settings]: no scenario 'absent'")


def test_folder_with_an_earlier_run_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "run-users.json").write_text("{}")

    ran = nunatak("loadtest", "run", "users", *NOBODY, "--out", str(tmp_path))

    assert ran.exit_code == 1
    assert "never overwritten" in ran.stderr
    assert (tmp_path / "run-users.json").read_text() == "{}"
