"""Laws of the results folder."""

from pathlib import Path

import pytest

from doubles.refusals import raises
from doubles.sweeps import record_of, toy_runs
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.results import ResultsFolder


@pytest.fixture(name="runs", scope="module")
def make_runs(folder: Path) -> tuple[Run, ...]:
    return toy_runs(folder, seeds=[0, 1])


@pytest.fixture(name="results")
def make_results(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder(tmp_path / "results")


def test_what_was_added_is_read_back_as_it_was(
    results: ResultsFolder, runs: tuple[Run, ...]
) -> None:
    records = [record_of(runs[0], 0.25, 0.5), record_of(runs[1])]
    for record in (record_of(runs[0], 0.75), *records):
        results.add(record)

    ordered = sorted(records, key=lambda it: it.run.digest)
    assert list(results.records()) == ordered
    files = sorted(results.path.glob("*.jsonl"))
    assert [it.stem for it in files] == [it.run.digest for it in ordered]
    assert [it.read_text().partition("\n")[1:] for it in files] == [("\n", "")] * 2


def test_half_written_file_is_no_result(results: ResultsFolder, runs: tuple[Run, ...]) -> None:
    results.path.mkdir()
    (results.path / f"{runs[0].description.digest}.jsonl.partial").write_text('{"run": {"dig')

    assert results.records() == ()
    results.add(record_of(runs[0], 0.5))
    assert len(results.records()) == 1


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"run": 1}'])
def test_file_that_no_sweep_wrote_is_named(results: ResultsFolder, content: str) -> None:
    results.path.mkdir()
    (results.path / "notes.jsonl").write_text(content)

    with raises("corrupt_result", match=r"notes\.jsonl is no result"):
        results.records()


def test_result_under_the_digest_of_another_run_is_refused(
    results: ResultsFolder, runs: tuple[Run, ...]
) -> None:
    results.add(record_of(runs[0], 0.5))
    (path,) = results.path.glob("*.jsonl")
    path.rename(path.with_stem(runs[1].description.digest))

    with raises("corrupt_result", match="holds the run"):
        results.records()


def test_folder_is_held_by_one_sweep_at_a_time(results: ResultsFolder) -> None:
    other = ResultsFolder(results.path)
    with results.held(), raises("sweep_running", match="another sweep"), other.held():
        pass
    with other.held():
        pass


def test_dropped_failures_leave_the_others(results: ResultsFolder, runs: tuple[Run, ...]) -> None:
    finished = record_of(runs[0], 0.5)
    results.add(finished)
    results.add(record_of(runs[1]))

    results.drop_failures()

    assert results.records() == (finished,)
