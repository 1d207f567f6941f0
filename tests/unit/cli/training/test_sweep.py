"""Laws of `nunatak sweep`."""

from pathlib import Path

import pytest

from doubles.sweeps import toy_folder
from doubles.terminals import Ran, nunatak

SWEEP = """
name: small
tasks: [{name: toy}]
methods: [{kind: head}]
recipe: {epochs: 1, max_length: 32}
"""


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy_folder(tmp_path_factory.mktemp("sweep"))
    (folder / "small.yaml").write_text(SWEEP)
    return folder


def sweep(folder: Path, results: Path, *options: str) -> Ran:
    return nunatak(
        "sweep", "run", str(folder / "small.yaml"), "--set", f"data_root={folder}",
        "--set", f"backbones=[{folder / 'backbone'}]", "--results", str(results), *options,
    )  # fmt: skip


def test_sweep_runs_goes_on_and_reports(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    both = "methods=[{kind: head}, {kind: bottleneck, size: [4]}]"
    first = sweep(folder, results)
    second = sweep(folder, results, "--set", "seeds=[0,1]", "--set", both)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "1 run, 0 of them done before" in first.stderr
    assert "4 runs, 1 of them done before" in second.stderr
    assert len(list(results.glob("*.jsonl"))) == 4

    printed = nunatak("sweep", "report", str(results))
    assert printed.exit_code == 0
    assert printed.stdout.startswith("| task |")
    assert nunatak("sweep", "report", str(results), "--out", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out" / "table.md").read_text() == printed.stdout


def test_failed_run_is_reported_and_tried_again_only_when_asked(
    folder: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    senseless = ("--set", "regularizers=[{name: graddrop}]")

    runs = [sweep(folder, results, *senseless, *it) for it in ((), (), ("--retry-failed",))]

    assert [it.exit_code for it in runs] == [1, 1, 1]
    assert ["failed [invalid_recipe]" in it.stderr for it in runs] == [True, False, True]
    assert [it.stderr.count("error [invalid_recipe]: toy") for it in runs] == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("gone=1", "gone: there is no such field"),
        ("seeds", "--set expects NAME=VALUE"),
        ("tasks.first=1", "tasks has no settings with names"),
    ],
)
def test_changes_that_make_no_sweep_are_refused(
    folder: Path, tmp_path: Path, change: str, problem: str
) -> None:
    ran = sweep(folder, tmp_path / "results", "--set", change)

    assert ran.exit_code == 1
    assert problem in ran.stderr


def test_report_of_an_empty_folder_is_refused(tmp_path: Path) -> None:
    nunatak("sweep", "report", str(tmp_path)).assert_refused("invalid_sweep")


def test_a_run_that_is_published_twice_is_one_version(folder: Path, tmp_path: Path) -> None:
    sweep(folder, tmp_path / "results")
    place = ("--registry", str(tmp_path / "registry"), "--create", "--promote", "prod")
    words = ("sweep", "publish", str(tmp_path / "results"), "--task", "tone", *place)

    first, again, told = (nunatak(*words, *it).stdout for it in ((), (), ("--json",)))

    assert "published tone/1\ntone@prod -> version 1 (new)\n" in first
    assert "tone/1 was there already with the same content; nothing was published\n" in again
    assert "tone@prod -> version 1 (it was there already; nothing moved)\n" in again
    assert '"is_new": false,\n  "alias": "prod"' in told


def test_publish_of_another_task_than_the_sweeps_is_refused(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    sweep(folder, results)

    ran = nunatak("sweep", "publish", str(results), "--task", "tone", "--of", "gone")

    assert ran.exit_code == 1
    assert "expected one of the tasks toy, got 'gone'" in ran.stderr
