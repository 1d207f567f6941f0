"""Laws of running a sweep, in one process and in several, and of the folder of its results."""

from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.hostile_texts import HOSTILE, obeyed
from doubles.refusals import raises
from doubles.sweeps import ScriptedRunner, record_of, toy_runs
from nunatak_contract.progress import Progress, shown_progress
from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.results import Failed, Finished, ResultsFolder, RunRecord
from nunatak_training.sweeps.running import InProcesses, RunContext, Worker, run_sweep


@pytest.fixture(name="runs", scope="module")
def make_runs(folder: Path) -> tuple[Run, ...]:
    return toy_runs(folder, seeds=[0, 1, 2, 3])


@pytest.fixture(name="results")
def make_results(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder(tmp_path / "results")


def test_killed_sweep_goes_on_where_it_was_and_no_run_is_done_twice(
    runs: tuple[Run, ...], results: ResultsFolder
) -> None:
    first, second, third = ScriptedRunner(killed_before=2), ScriptedRunner(), ScriptedRunner()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(runs, results, first, Progress())

    records = run_sweep(runs, results, second, Progress())
    again = run_sweep(runs, results, third, Progress())

    assert first.done + second.done == [run.description.digest for run in runs]
    assert third.done == []
    assert records == again
    assert [record.run for record in records] == [run.description for run in runs]


def test_results_follow_the_names_and_places_of_the_sweep_file(
    folder: Path, runs: tuple[Run, ...], results: ResultsFolder
) -> None:
    renamed = toy_runs(
        folder, seeds=[0, 1, 2, 3], tasks=[{"name": "tone", "data": str(folder / "toy")}]
    )
    run_sweep(runs, results, ScriptedRunner(), Progress())
    again = ScriptedRunner()

    run_sweep(renamed, results, again, Progress())

    assert again.done == []
    found = {it.run.digest: (it.run.task, it.origin) for it in results.records()}
    assert found == {it.description.digest: ("tone", it.origin) for it in renamed}


def test_test_set_is_scored_where_dev_is_of_the_train_examples(folder: Path) -> None:
    recipe: JsonValue = {"epochs": 2, "batch_size": 6, "max_length": 32}
    runs = toy_runs(folder, dev_from_train=True, train_caps=[16], dev_cap=8, recipe=recipe)

    (record,) = map(RunContext().run, runs)

    assert isinstance(record.outcome, Finished)
    assert record.outcome.test_scores.keys() == record.outcome.scores.keys()
    assert record.run.data.num_test == 8
    assert [it.step for it in record.outcome.epochs] == [3, 6]


@pytest.mark.slow
def test_processes_give_what_one_process_gives(folder: Path) -> None:
    runs = toy_runs(folder, seeds=[0, 1])

    alone = {it.run.digest: it.outcome for it in map(RunContext().run, runs)}
    together = {it.run.digest: it.outcome for it in InProcesses(jobs=2)(runs)}

    assert together == alone


def test_progress_names_a_failure_in_hostile_words_on_one_plain_line(
    runs: tuple[Run, ...], results: ResultsFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = Failed(code="failed", message=HOSTILE)

    def failing(runs: Sequence[Run]) -> Iterator[RunRecord]:
        yield from (record_of(run).model_copy(update={"outcome": failure}) for run in runs)

    with shown_progress() as progress:
        run_sweep(runs[:1], results, failing, progress)

    printed = capsys.readouterr().err
    assert "evil[b]" in printed
    assert printed.count("\n") == 2
    assert obeyed(printed) == set()


@pytest.mark.parametrize("is_given", [False, True])
def test_worker_that_dies_before_or_after_it_was_given_a_run_fails_it(
    runs: tuple[Run, ...], monkeypatch: pytest.MonkeyPatch, *, is_given: bool
) -> None:
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=there.recv_bytes if is_given else int)
    process.start()
    there.close()
    if not is_given:
        process.join()

    def given(*_: object) -> Worker:
        return Worker(process=process, pipe=here)

    monkeypatch.setattr(InProcesses, "_start", given)

    (record,) = InProcesses(jobs=2)(runs[:1])

    assert isinstance(record.outcome, Failed)
    assert record.outcome.code == "worker_died"


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
