"""Laws of `nunatak predict-file`: the rows of a corpus with the answers of its tasks."""

import csv
import errno
import gzip
import json
import math
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from doubles.corpora import (
    CHUNK_ROWS,
    TASKS,
    Misses,
    make_corpus,
    make_place,
    misses,
    run_killed,
    score,
)
from doubles.tasks import publish_tiny_task
from doubles.terminals import Ran, nunatak
from nunatak_cli.asking.chunks import Chunk, ahead
from nunatak_cli.asking.predict_file import ChunkProgress
from nunatak_contract.errors import NunatakError
from nunatak_contract.progress import Progress, Work
from nunatak_model import load_backbone
from nunatak_registry import Registry
from nunatak_server.local import LocalPredictor
from nunatak_server.predict.scoring import BATCH_TOKENS, ReadInputs, ScoredInputs, Scorer

TEXTS = ("where is my parcel?", "thank\ryou", 'thank "you",\r\nall\tof you', "a" * 300)
NUM_ROWS = 50
BROKEN = (3, 30, 31, 49)


@pytest.fixture(name="place", scope="module")
def make_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


def run(place: Path, corpus: Path, out: Path, *options: str) -> Ran:
    asked = [it for name in TASKS for it in ("--task", name)]
    at = ("--registry", str(place / "registry"), "--backbone", str(place / "backbone"))
    return nunatak("predict-file", str(corpus), str(out), *asked, *at, *options)


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_keeps_its_columns_and_gets_the_answers_of_a_server(
    place: Path, tmp_path: Path
) -> None:
    corpus, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    corpus.write_text("".join(f"{json.dumps({'text': it, 'n': it[:1]})}\n" for it in TEXTS))
    backbone = load_backbone(place / "backbone")

    ran = run(place, corpus, out, "--scores", "--json")

    with Registry.open(place / "registry") as registry, LocalPredictor(registry, backbone) as local:
        results: Any = local.predict(TEXTS, TASKS).results
    tone, topics, stars, names = results
    assert ran.exit_code == 0
    assert ran.json()["versions"] == dict.fromkeys(TASKS, 1)
    for place_, row in enumerate(jsonl(out)):
        assert row["text"] == TEXTS[place_]
        assert row["n"] == TEXTS[place_][:1]
        scores = {it["label"]: it["score"] for it in tone.outputs[place_]}
        assert row["tone"] == tone.predicted[place_]
        assert row["tone_scores"] == pytest.approx(scores, abs=1e-5)
        assert row["tone_score"] == row["tone_scores"][row["tone"]]
        assert tuple(row["topics"]) == topics.predicted[place_]
        assert len(row["topics_score"]) == len(row["topics"])
        assert row["stars"] == pytest.approx(stars.predicted[place_], abs=1e-5)
        found = [(it["entity"], it["start"], it["end"]) for it in row["names"]]
        assert found == [(it["entity"], it["start"], it["end"]) for it in names.outputs[place_]]


def test_a_table_keeps_the_types_of_its_columns(place: Path, tmp_path: Path) -> None:
    at = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 5)]
    table = pa.table(
        {"at": pa.array(at, pa.timestamp("ns", "UTC")), "body": TEXTS, "code": [b"\0", None] * 2}
    )
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=3)
    lines = [{"body": text, "id": f"{number:03}"} for number, text in enumerate(TEXTS)]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "body"])
        writer.writeheader()
        writer.writerows(lines)

    for name, other in (("parquet", "parquet"), ("csv", "tsv"), ("csv", "jsonl.gz")):
        out = tmp_path / f"{name}-out.{other}"
        ran = run(place, tmp_path / f"in.{name}", out, "--text-column", "body")
        assert ran.exit_code == 0, ran.stderr

    scored = parquet.read_table(tmp_path / "parquet-out.parquet")
    assert scored.select(["at", "body", "code"]).equals(table)
    assert scored.schema.field("tone").type == pa.string()
    assert scored.schema.field("stars").type == pa.float64()
    with (tmp_path / "csv-out.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with gzip.open(tmp_path / "csv-out.jsonl.gz", "rt") as file:
        documents = [json.loads(line) for line in file]
    for place_, (row, document) in enumerate(zip(rows, documents, strict=True)):
        assert (row["id"], row["body"]) == (f"{place_:03}", TEXTS[place_])
        assert row["tone"] == document["tone"] == scored["tone"][place_].as_py()
        assert json.loads(row["topics"]) == document["topics"]
        assert float(row["stars"]) == document["stars"]


def test_rows_that_cannot_be_answered_are_rejected_with_the_reason(
    place: Path, tmp_path: Path
) -> None:
    corpus, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bad = {
        '{"text": ""}': "'text' must be a text, got an empty text",
        "{": "not a JSON object",
        '{"text": "hello", "tone": "x"}': "the column 'tone' would be overwritten",
        '{"text": "hello", "text_pair": "you"}': "names: the input is a pair",
        json.dumps({"text": "long " * 100}): "tone: the text has ",
        json.dumps({"text": "nul \0"}): "the text contains a NUL character",
    }
    corpus.write_text("\n".join(['{"text": "hello", "id": 1}', *bad, '{"text": "bye"}']))

    ran = run(place, corpus, out, "--on-long", "refuse")

    assert ran.exit_code == 3
    assert "rejected 6 rows; the reasons are in" in ran.stderr
    assert [row["text"] for row in jsonl(out)] == ["hello", "bye"]
    rejected = jsonl(tmp_path / "out.rejected.jsonl")
    for number, (row, reason) in enumerate(zip(rejected, bad.values(), strict=True), start=2):
        assert (row["file"], row["row"]) == (str(corpus), number)
        assert str(row["reason"]).startswith(reason)


def test_a_kept_column_is_all_that_the_answers_stand_next_to(place: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", 3)
    with corpus.open("a") as file:
        file.write('\n{"text": "a", "rare": 1}')

    score(place, corpus, tmp_path / "out.jsonl", keep=["id", "rare"])

    *first, last = map(list, jsonl(tmp_path / "out.jsonl"))
    assert first == 3 * [["id", "tone", "tone_score"]]
    assert last == ["rare", "tone", "tone_score"]


def test_a_cut_text_is_marked(place: Path, tmp_path: Path) -> None:
    corpus, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    corpus.write_text(json.dumps({"text": "long " * 100}) + '\n{"text": "short"}')

    run(place, corpus, out, "--on-long", "cut")

    assert [row["tone_truncated"] for row in jsonl(out)] == [True, False]


def test_folders_and_globs_are_scored_in_the_order_of_their_names(
    place: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl", "_done.txt"):
        (folder / name).write_text("\n".join([json.dumps({"text": name})] * 20))

    score(place, folder, tmp_path / "flat.jsonl")
    score(place, folder / "**" / "**" / "*.jsonl", tmp_path / "deep.jsonl")

    flat = [row["text"] for row in jsonl(tmp_path / "flat.jsonl")]
    assert flat == ["a.jsonl"] * 20 + ["b.jsonl"] * 20
    assert [row["text"] for row in jsonl(tmp_path / "deep.jsonl")][40:] == ["deep/c.jsonl"] * 20


class Killed(Exception):  # noqa: N818 - stands for a signal, which is no Exception
    pass


def kill_after_two_chunks(place: Path, corpus: Path, out: Path) -> None:
    seen = list[object]()

    def kill(*chunk: object) -> None:
        seen.append(chunk)
        if len(seen) == 2:
            raise Killed

    with pytest.raises(Killed):
        score(place, corpus, out, on_chunk=kill)


def test_a_repeated_run_goes_on_with_the_versions_of_its_begin(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    corpus, out = make_corpus(tmp_path / "in.jsonl", NUM_ROWS), tmp_path / "out.jsonl"
    score(place, corpus, tmp_path / "whole.jsonl")
    kill_after_two_chunks(place, corpus, out)
    with Registry.open(place / "registry") as registry:
        publish_tiny_task(registry, load_backbone(place / "backbone"), task="tone", seed=9)
        assert registry.resolve("tone").version == 2

    outcome = score(place, corpus, out)

    assert outcome is not None
    assert outcome.versions["tone"].version == 1
    assert (outcome.num_rows, outcome.num_scored) == (NUM_ROWS, NUM_ROWS - 2 * CHUNK_ROWS)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    anew = score(place, corpus, tmp_path / "new.jsonl")
    assert anew is not None
    assert anew.versions["tone"].version == 2


def test_a_run_of_another_corpus_or_other_options_is_refused(place: Path, tmp_path: Path) -> None:
    corpus, out = make_corpus(tmp_path / "in.jsonl", NUM_ROWS), tmp_path / "out.jsonl"
    kill_after_two_chunks(place, corpus, out)

    other: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        (("tone", "stars"), {}, "tasks"),
        (("tone",), {"scores": True}, "options"),
    ]
    for tasks, options, changed in other:
        with pytest.raises(NunatakError, match=f"has the parts of another run: .*: {changed}; "):
            score(place, corpus, out, tasks=tasks, **options)
    os.utime(corpus, ns=(0, 0))
    with pytest.raises(NunatakError, match=r"has the parts of another run: .*: files; "):
        score(place, corpus, out)
    assert len(list(tmp_path.glob("out.jsonl.parts/part-*"))) == 2


def test_one_run_at_a_time_writes_to_a_file(place: Path, tmp_path: Path) -> None:
    corpus, out = make_corpus(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    refused = list[str]()

    def begin_again(*_: object) -> None:
        with pytest.raises(NunatakError) as caught:
            score(place, corpus, out)
        refused.append(caught.value.code)

    score(place, corpus, out, on_chunk=begin_again)

    assert refused == ["corpus_running"] * 3


def test_a_disk_without_room_is_told_with_the_file(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    corpus, out = make_corpus(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    monkeypatch.setattr(os, "fsync", refuse)

    with pytest.raises(OSError, match="No space left") as caught:
        score(place, corpus, out)

    assert str(caught.value.filename).startswith(f"{out}.parts/")


def test_a_file_that_exists_is_never_overwritten(place: Path, tmp_path: Path) -> None:
    corpus, out = make_corpus(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    out.write_text("precious")
    folder = tmp_path / "other.jsonl.parts"
    folder.mkdir()
    (folder / "notes.txt").write_text("precious")

    ran = run(place, corpus, out)
    within = run(place, corpus, tmp_path / "other.jsonl", "--text-column", "none")
    beside = run(place, corpus, tmp_path / "out.jsonl.gz")

    assert ran.stderr.startswith("error [invalid_option]: ")
    assert beside.exit_code == 0
    assert "notes.txt is of no run" in within.stderr
    assert out.read_text() == (folder / "notes.txt").read_text() == "precious"
    assert not out.with_name("out.jsonl.parts").exists()


@pytest.mark.parametrize(
    ("name", "content", "out", "options", "problem"),
    [
        ("x.jsonl", "", "o.csv", (), "ends in .jsonl or .jsonl.gz, got o.csv"),
        ("x.jsonl", "", "-", (), "ends in .jsonl or .jsonl.gz, got -"),
        ("x.csv", "text\na", "o.csv", ("--keep", "id"), "--keep names 'id'; the corpus has"),
        (
            "x.jsonl",
            '{"text": "a", "id": 1}\n{"text": "b"}',
            "o.jsonl",
            ("--keep", "id", "--keep", "ID"),
            "--keep names 'ID'; the corpus has the columns text, id",
        ),
        ("x.csv", "text,tone\na,b", "o.csv", (), "has a column 'tone' already"),
        ("x.csv", "words\na", "o.csv", (), "expected the columns text"),
        ("x.csv", "text\na", "o.csv", ("--text-column", "body"), "has no column 'body'"),
        ("x.xml", "<a/>", "o.jsonl", (), "the suffix tells no format"),
        ("x.csv", "", "o.csv", (), "the file is empty"),
        ("x.jsonl", "", "o.jsonl", ("--task", "tone"), "names one reference twice"),
        ("x.jsonl", "", "o.jsonl", ("--task", "gone"), "no task 'gone'"),
        ("x.jsonl", "", "o.jsonl", ("--scorers", "2"), "name the cluster with --on"),
        ("x.jsonl", "", "no/o.jsonl", (), "cannot be made"),
        ("x.jsonl", "", "x.jsonl", (), "x.jsonl exists; remove it"),
        ("o.rejected.jsonl", "", "o.jsonl", (), "o.rejected.jsonl exists; remove it"),
    ],
)
def test_a_command_that_cannot_work_is_refused_before_the_first_row(
    place: Path,
    tmp_path: Path,
    name: str,
    content: str,
    out: str,
    options: tuple[str, ...],
    problem: str,
) -> None:
    (tmp_path / name).write_text(content)

    ran = run(place, tmp_path / name, tmp_path / out, *options)

    assert ran.exit_code == 1
    assert problem in ran.stderr
    assert [it.name for it in tmp_path.iterdir()] == [name]


def test_parts_without_a_record_are_never_used(place: Path, tmp_path: Path) -> None:
    corpus, out = make_corpus(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    parts = tmp_path / "out.jsonl.parts"
    parts.mkdir()
    (parts / "part-00000000.jsonl").write_text('{"of": "another run"}\n')

    score(place, corpus, out)

    assert [row["id"] for row in jsonl(out)] == [0, 1, 2]


@pytest.mark.parametrize("name", ["out.jsonl", "out.rejected.jsonl"])
def test_a_run_overwrites_no_file_that_another_has_made_meanwhile(
    place: Path, tmp_path: Path, name: str
) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", NUM_ROWS, broken=BROKEN)
    out, other = tmp_path / "out.jsonl", tmp_path / name

    def make(*_: object) -> None:
        other.write_text("of another\n")

    with pytest.raises(NunatakError, match="is of another run; move it away"):
        score(place, corpus, out, on_chunk=make)
    assert other.read_text() == "of another\n"
    other.unlink()
    score(place, corpus, out)

    rejected = jsonl(tmp_path / "out.rejected.jsonl")
    assert (len(jsonl(out)), len(rejected)) == (NUM_ROWS - len(BROKEN), len(BROKEN))


def test_files_of_a_folder_must_have_one_form(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.csv").write_text("text,id\na,b")
    (folder / "b.csv").write_text("text\na")
    with pytest.raises(NunatakError, match=r"b\.csv: expected the columns of .*a\.csv"):
        score(place, folder, tmp_path / "out.csv")

    (folder / "b.csv").rename(folder / "b.jsonl")
    with pytest.raises(NunatakError, match=r"b\.jsonl: expected the format of .*a\.csv"):
        score(place, folder, tmp_path / "out.csv")


def test_each_step_of_a_run_is_at_most_one_chunk_ahead_of_the_next() -> None:
    made = list[int]()

    def numbers() -> Iterator[int]:
        for number in range(1, 50):
            made.append(number)
            yield number

    for number in ahead(numbers()):
        assert made[-1] <= number + 1
    assert made == list(range(1, 50))


def test_rows_of_a_killed_run_and_the_time_to_load_count_for_no_rate() -> None:
    begun, advanced = list[tuple[int, float]](), list[tuple[int, float | None]]()

    class Recording(Progress):
        def begin(self, work: Work) -> None:
            begun.append((work.done, work.share))

        def advance(self, num: int = 1, *, share: float | None = None, note: str = "") -> None:
            advanced.append((num, share))

    tell = ChunkProgress(Recording())
    done, first, last = (
        Chunk(
            index=index,
            rows=[],
            first_row=index * 1000,
            num_rows=1000,
            begin=begin,
            end=end,
            is_done=not index,
        )
        for index, (begin, end) in enumerate(((0.0, 0.1), (0.1, 0.3), (0.3, 0.4)))
    )
    tell(done)
    # The thread that scores is ahead of the thread that writes.
    for chunk, scored in ((first, 0.5), (first, 1.0), (last, 0.5)):
        tell(chunk, scored)
    tell(first)
    tell(last)

    assert begun == [(0, 0.0), (1000, 0.1), (1500, 0.2)]
    assert advanced == [(500, 0.3), (500, 0.35), (500, 0.4)]


def test_a_chunk_that_takes_long_tells_its_rows_before_it_is_written(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 8)
    corpus, told = make_corpus(tmp_path / "in.jsonl", CHUNK_ROWS), list[float]()

    score(
        place,
        corpus,
        tmp_path / "out.jsonl",
        on_batch=lambda _, scored: told.append(scored),
        on_chunk=lambda *_: told.append(math.inf),
    )

    assert len(told) > 3
    assert told == sorted(told)
    assert told[-2:] == [1.0, math.inf]


def test_a_run_ends_with_its_threads(place: Path, tmp_path: Path) -> None:
    corpus, before = make_corpus(tmp_path / "in.jsonl", NUM_ROWS), threading.active_count()

    kill_after_two_chunks(place, corpus, tmp_path / "out.jsonl")

    assert threading.active_count() == before


def test_an_interrupted_run_waits_for_no_chunk_ahead(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, stopped = Scorer.score, threading.Event()
    scored = list[int]()

    def wait_for_the_end(scorer: Scorer, read: ReadInputs, _: object) -> ScoredInputs:
        scored.append(len(read.inputs))
        if len(scored) > 1:
            assert stopped.wait(60)
        return answer(scorer, read)

    def interrupt(_: Chunk) -> None:
        raise KeyboardInterrupt

    def stop(_: Scorer) -> None:
        stopped.set()

    monkeypatch.setattr(Scorer, "score", wait_for_the_end)
    monkeypatch.setattr(Scorer, "stop", stop)
    corpus, out = make_corpus(tmp_path / "in.jsonl", NUM_ROWS), tmp_path / "out.jsonl"

    with pytest.raises(KeyboardInterrupt):
        score(place, corpus, out, on_chunk=interrupt)

    assert stopped.is_set()
    assert len(scored) <= 2
    monkeypatch.undo()
    score(place, corpus, out)
    assert [it["id"] for it in jsonl(out)] == list(range(NUM_ROWS))


def test_a_corpus_that_changes_while_it_is_scored_is_refused(place: Path, tmp_path: Path) -> None:
    corpus, out = make_corpus(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"

    def touch(*_: object) -> None:
        os.utime(corpus, ns=(0, 0))

    with pytest.raises(NunatakError, match="changed since the begin of the run: files"):
        score(place, corpus, out, on_chunk=touch)

    assert not out.exists()


def test_a_run_killed_between_its_writes_ends_like_a_run_that_was_not_killed(
    place: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    make_corpus(corpus / "in.jsonl", NUM_ROWS, broken=BROKEN)
    whole, killed = tmp_path / "whole.jsonl", corpus / "killed.jsonl"
    score(place, corpus, whole)

    kills = run_killed(place, corpus, killed, rhythm=[2, 3, 4])

    assert kills >= 5
    assert killed.read_bytes() == whole.read_bytes()
    rejected, again = tmp_path / "whole.rejected.jsonl", corpus / "killed.rejected.jsonl"
    assert again.read_bytes() == rejected.read_bytes()
    assert misses(killed, again, NUM_ROWS) == Misses(lost=0, twice=0)
    assert len(rejected.read_text().splitlines()) == len(BROKEN)
    assert {*corpus.iterdir()} == {corpus / "in.jsonl", killed, again}


def test_a_chunk_that_is_scored_again_keeps_no_rejected_rows_of_the_killed_run(
    place: Path, tmp_path: Path
) -> None:
    corpus, out = make_corpus(tmp_path / "in.jsonl", NUM_ROWS), tmp_path / "out.jsonl"
    kill_after_two_chunks(place, corpus, out)
    last = f"{NUM_ROWS // CHUNK_ROWS:08}"
    (tmp_path / "out.jsonl.parts" / f"rejected-{last}.jsonl").write_text('{"row": 1}\n')

    score(place, corpus, out)

    assert not (tmp_path / "out.rejected.jsonl").exists()
