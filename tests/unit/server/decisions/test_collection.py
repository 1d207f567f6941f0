"""Laws of collected texts: private files, bounded by rows and days, shared by processes."""

import asyncio
import json
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from doubles.damage import files_of_at_most
from doubles.refusals import raises
from doubles.serving import ManualClock
from nunatak_contract.questions import TypedQuestion
from nunatak_server.decisions import collection as module
from nunatak_server.decisions.answers import AnswerSource, QuestionAnswer
from nunatak_server.decisions.collection import DAY_S, Collection, Collector

LATE = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it late?"})
OTHER = TypedQuestion.model_validate({"type": "noul", "instructions": "Is it lost?"})
SHARES = {"yes": 0.75, "no": 0.25}


def opened(
    folder: Path, *, rows: int = 100, days: int = 7, clock: ManualClock | None = None
) -> Collection:
    made = Collection(folder, max_rows=rows, max_days=days, clock=clock or ManualClock(DAY_S))
    made.open()
    return made


def texts(folder: Path, question: TypedQuestion = LATE) -> list[str]:
    lines = (folder / f"{question.digest}.jsonl").read_text().splitlines()
    return [json.loads(it)["text"] for it in lines]


def test_rows_are_for_training_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    collection = opened(folder)

    collection.add(LATE, 'Wörter\n"two" lines', SHARES)

    (row,) = (folder / f"{LATE.digest}.jsonl").read_text().splitlines()
    assert json.loads(row) == {
        "text": 'Wörter\n"two" lines',
        "probabilities": SHARES,
        "at": "1970-01-02T00:00:00+00:00",
    }
    modes = {stat.S_IMODE(it.stat().st_mode) for it in folder.iterdir()}
    assert (stat.S_IMODE(folder.stat().st_mode), modes) == (0o700, {0o600})
    (found,) = collection.questions()
    assert (found.question, found.rows) == (LATE, 1)


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_full_file_keeps_its_newest_rows(tmp_path: Path, limit: int) -> None:
    collection = opened(tmp_path / "texts", rows=limit)

    for number in range(37):
        collection.add(LATE, str(number), SHARES)
        kept = texts(tmp_path / "texts")
        assert len(kept) <= limit
        assert kept == [str(it) for it in range(number - len(kept) + 1, number + 1)]


def test_long_texts_fill_a_file_before_its_rows_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 2000)
    collection = opened(tmp_path / "texts")

    for number in range(50):
        collection.add(LATE, f"{number} " + "x" * 300, SHARES)
        assert (tmp_path / "texts" / f"{LATE.digest}.jsonl").stat().st_size < 2500

    kept = [int(it.split()[0]) for it in texts(tmp_path / "texts")]
    assert kept == list(range(50 - len(kept), 50))
    assert len(kept) > 2


def test_old_rows_go_and_the_last_one_takes_its_question_along(tmp_path: Path) -> None:
    clock = ManualClock(100 * DAY_S)
    collection = opened(tmp_path / "texts", days=7, clock=clock)
    collection.add(LATE, "old", SHARES)
    collection.add(OTHER, "old", SHARES)
    clock.now += 5 * DAY_S
    collection.add(LATE, "new", SHARES)
    clock.now += 3 * DAY_S

    collection.sweep()

    assert texts(tmp_path / "texts") == ["new"]
    assert [it.question for it in collection.questions()] == [LATE]
    clock.now += 5 * DAY_S
    opened(tmp_path / "texts", days=7, clock=clock).sweep()
    assert list((tmp_path / "texts").iterdir()) == []


def test_what_cannot_be_read_keeps_no_other_old_row(tmp_path: Path) -> None:
    clock = ManualClock(100 * DAY_S)
    collection = opened(tmp_path / "texts", days=7, clock=clock)
    for question in (LATE, OTHER):
        collection.add(question, "old", SHARES)
    for number in range(20):
        (tmp_path / "texts" / f"{number:064}.jsonl").mkdir()
    clock.now += 8 * DAY_S

    with pytest.raises(IsADirectoryError):
        collection.sweep()

    assert [it for it in (tmp_path / "texts").iterdir() if it.is_file()] == []


def test_processes_share_a_folder(tmp_path: Path) -> None:
    parts = [opened(tmp_path / "texts", rows=1000) for _ in range(4)]

    def add_all(number: int) -> None:
        for it in range(50):
            parts[number].add(LATE, f"{number}-{it} " + "x" * 5000, SHARES)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_all, range(4)))

    found = {it.split()[0] for it in texts(tmp_path / "texts")}
    assert found == {f"{number}-{it}" for number in range(4) for it in range(50)}
    assert parts[0].clear() == 200
    parts[1].add(LATE, "after", SHARES)
    assert texts(tmp_path / "texts") == ["after"]


@pytest.mark.parametrize(("rows", "kept"), [(10, ["first", "old", "third"]), (2, ["old", "third"])])
def test_a_full_disk_costs_the_new_row_alone(tmp_path: Path, rows: int, kept: list[str]) -> None:
    collection = opened(tmp_path / "texts", rows=rows)
    collection.add(LATE, "first", SHARES)
    collection.add(LATE, "old", SHARES)
    before = {it: it.stat().st_size for it in (tmp_path / "texts").iterdir()}
    limit = max(before.values()) + 10 if rows > 2 else 10
    with files_of_at_most(limit):
        with pytest.raises(OSError, match=r"No space left|too large"):
            collection.add(LATE, "second", SHARES)
        assert {it: it.stat().st_size for it in (tmp_path / "texts").iterdir()} == before
        opened(tmp_path / "texts")

    collection.add(LATE, "third", SHARES)

    assert texts(tmp_path / "texts") == kept


async def test_a_folder_that_is_away_loses_rows_and_is_logged_once_without_texts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(Collection(tmp_path / "texts", max_rows=9, max_days=9))
    await collector.start()
    shutil.rmtree(tmp_path / "texts")
    by, shares = AnswerSource.UPSTREAM, (0.25, 0.75)
    answer = QuestionAnswer(question=LATE, probabilities=shares, by=by, about={})

    for _ in range(3):
        collector.keep(answer, LATE.names, "a private text")
    await collector.aclose()
    await asyncio.sleep(0.01)

    (said,) = [it.getMessage() for it in caplog.records]
    assert said == "texts cannot be collected (No such file or directory)"
    assert "private" not in said


def test_the_number_of_questions_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUESTIONS", 1)
    collection = opened(tmp_path / "texts")

    for question in (LATE, OTHER, LATE):
        collection.add(question, "text", SHARES)

    assert [(it.question, it.rows) for it in collection.questions()] == [(LATE, 2)]


def test_files_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    collection = opened(folder)
    for name in ("own.jsonl", "own.json", "own.new"):
        (folder / name).write_text("{}")
    collection.add(LATE, "text", SHARES)

    collection.sweep()
    assert collection.clear() == 1

    assert sorted(it.name for it in folder.iterdir()) == ["own.json", "own.jsonl", "own.new"]


def test_a_damaged_folder_is_cleared_and_a_damaged_row_goes(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    collection = opened(folder)
    collection.add(LATE, "text", SHARES)
    with (folder / f"{LATE.digest}.jsonl").open("a") as rows:
        rows.write('{"text": "cut')
    collection.sweep()
    assert texts(folder) == ["text"]
    (folder / f"{LATE.digest}.json").write_text("{}")
    (folder / f"{LATE.digest}.new").write_text("left by a killed process")

    with raises("invalid_collection"):
        collection.questions()
    collection.clear()

    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o770, 0o701])
def test_a_folder_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    folder.chmod(mode)

    with raises("invalid_collection", match="chmod 700"):
        opened(folder)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with raises("invalid_collection"):
        opened(tmp_path / "file")
    with raises("invalid_collection"):
        Collection(tmp_path / "missing").questions()
