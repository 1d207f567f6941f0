"""Laws of a run that is killed and repeated: no row is lost, and no row stands there twice."""

from pathlib import Path

import pytest

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

NUM_ROWS = 90
BROKEN = (3, 40, 41, 89)


@pytest.fixture(name="place", scope="module")
def make_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


def test_a_run_killed_between_its_writes_ends_like_a_run_that_was_not_killed(
    place: Path, tmp_path: Path
) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", NUM_ROWS, broken=BROKEN)
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    score(place, corpus, whole, tasks=TASKS)

    kills = run_killed(place, corpus, killed, rhythm=[2, 3, 4], tasks=TASKS)

    assert kills >= 5
    assert killed.read_bytes() == whole.read_bytes()
    names = ("whole.rejected.jsonl", "killed.rejected.jsonl")
    rejected, again = (tmp_path / name for name in names)
    assert again.read_bytes() == rejected.read_bytes()
    assert misses(killed, again, NUM_ROWS) == Misses(lost=0, twice=0)
    assert len(rejected.read_text().splitlines()) == len(BROKEN)
    assert sorted(it.name for it in tmp_path.iterdir()) == sorted(
        ["in.jsonl", "whole.jsonl", "killed.jsonl", *names]
    )


def test_the_count_finds_a_part_that_is_written_twice_in_place_of_another(
    place: Path, tmp_path: Path
) -> None:
    """The control: a run whose parts are wrong must not pass."""
    corpus, out = make_corpus(tmp_path / "in.jsonl", NUM_ROWS), tmp_path / "out.jsonl"
    parts = out.with_name("out.jsonl.parts")

    def swap(*_: object) -> None:
        found = sorted(parts.glob("part-*"))
        if len(found) == 3:
            found[1].write_bytes(found[0].read_bytes())

    score(place, corpus, out, on_chunk=swap)

    found = misses(out, tmp_path / "out.rejected.jsonl", NUM_ROWS)
    assert found == Misses(lost=CHUNK_ROWS, twice=CHUNK_ROWS)
