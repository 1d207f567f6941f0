"""A corpus that a cluster scores has the bytes of a corpus that this machine scores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from doubles.corpora import CHUNK_ROWS, TASKS, make_corpus, make_place
from doubles.terminals import nunatak
from nunatak_cli.asking.chunks import Chunk
from nunatak_cli.asking.predict_file import CorpusJob, CorpusOptions, run_job
from nunatak_contract.enums import Kernels
from nunatak_contract.errors import NunatakError
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nodes"), pytest.mark.timeout(400)]
NUM_ROWS = 120


@pytest.fixture(name="place", scope="module")
def make_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


def score(
    place: Path,
    corpus: Path,
    out: Path,
    *,
    on: str | None,
    on_chunk: Callable[[Chunk], None] = lambda _: None,
) -> None:
    # Only the process of the tests hides the installed operators.
    settings = ServerSettings(
        registry=str(place / "registry"),
        backbone=str((place / "backbone").absolute()),
        compute_threads=1,
        kernels=Kernels.PLAIN,
    )
    job = CorpusJob(
        corpus=str(corpus),
        out=out,
        references=TASKS,
        chunk_rows=CHUNK_ROWS,
        options=CorpusOptions(on=on, scorers=None if on is None else 2),
    )
    with Registry.open(place / "registry", create=False) as registry:
        run_job(job, registry, settings=settings, on_chunk=on_chunk)


def test_scorers_of_a_cluster_write_the_bytes_of_one_machine(place: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", NUM_ROWS, broken=(3, 40))
    score(place, corpus, tmp_path / "here.jsonl", on=None)

    score(place, corpus, tmp_path / "there.jsonl", on="ray")

    there, here = (tmp_path / f"{name}.jsonl" for name in ("there", "here"))
    assert here.read_bytes().count(b"\n") == NUM_ROWS - 2
    assert there.read_bytes() == here.read_bytes()
    rejected = [tmp_path / f"{name}.rejected.jsonl" for name in ("there", "here")]
    assert rejected[0].read_bytes() == rejected[1].read_bytes()


def test_scorers_find_a_registry_that_is_named_from_the_folder_of_the_caller(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", 4)
    # The scorers run in the folder in which the cluster began.
    monkeypatch.chdir(place.parent)

    score(Path(place.name), corpus, tmp_path / "out.jsonl", on="ray")

    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 4


def test_an_error_of_a_scorer_keeps_its_code(place: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", 4)

    ran = nunatak(
        *("predict-file", str(corpus), str(tmp_path / "out.jsonl"), "--task", "tone"),
        *("--registry", str(place / "registry"), "--backbone", "minilm", "--on", "ray"),
        *("--scorers", "1"),
    )

    assert ran.exit_code == 1
    assert "backbone_mismatch" in ran.stderr


def test_a_command_without_a_cluster_says_how_to_start_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    corpus = make_corpus(tmp_path / "in.jsonl", 4)

    for address in ("slurm", "ray"):
        with pytest.raises(NunatakError) as refused:
            score(place, corpus, tmp_path / "out.jsonl", on=address)
        assert refused.value.code == ("ray_unavailable" if address == "ray" else "invalid_option")
    assert "RAY_ADDRESS=127.0.0.1:9" in str(refused.value)
    assert not (tmp_path / "out.jsonl.parts").exists()
