"""Laws of `benchmarks.papers.analyze`, as its command line."""

from pathlib import Path

import pytest

from benchmarks.papers.analyze import main
from doubles.sweeps import record_of, toy_folder, toy_runs
from nunatak_training.sweeps.results import ResultsFolder

SWEEP = """
name: small
tasks: [{name: toy}, {name: other, data: toy}]
methods: [{kind: head}]
recipe: {epochs: 1, max_length: 32}
"""


@pytest.fixture(name="folder", scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy_folder(tmp_path_factory.mktemp("sweep"))
    (folder / "small.yaml").write_text(f"{SWEEP}backbones: [{folder / 'backbone'}]\n")
    return folder


def test_analysis_of_results_writes_table_and_plot(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ResultsFolder(tmp_path / "results")
    for run in toy_runs(folder):
        results.add(record_of(run, 0.5))

    main(["robustness", str(tmp_path / "results"), "--out", str(tmp_path / "out")])

    assert (tmp_path / "out" / "robustness.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "out" / "robustness.png").exists()


@pytest.mark.parametrize("name", ["rsa", "landscape"])
def test_analysis_of_trained_tasks_trains_the_runs_of_the_file(
    folder: Path, tmp_path: Path, name: str
) -> None:
    file, root = str(folder / "small.yaml"), str(folder)

    main([name, file, "--data-root", root, "--task", "toy", "--out", str(tmp_path)])

    assert (tmp_path / f"{name}.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("robustness", "nowhere"), r"error \[invalid_sweep\]"),
        (("rsa", "{file}", "--task", "gone"), "expected one of toy, other, got 'gone'"),
    ],
)
def test_what_cannot_be_analyzed_is_refused_in_one_line(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    given = [it.format(file=folder / "small.yaml") for it in arguments]

    with pytest.raises(SystemExit, match=problem):
        main([*given, "--out", str(tmp_path)])
