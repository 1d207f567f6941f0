"""Runs and corpora of a cluster have the bytes of one machine, also if nodes are killed."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.clusters import NodesOfRay, ray_nodes
from doubles.corpora import CHUNK_ROWS, TASKS, make_corpus, make_place, score
from doubles.sweeps import toy_file, toy_folder, toy_runs
from doubles.terminals import nunatak
from nunatak_contract.errors import NunatakError
from nunatak_training.sweeps.results import Finished, ResultsFolder
from nunatak_training.sweeps.running import RunContext

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
of_all_nodes = pytest.mark.usefixtures("nodes")
NUM_NODES = 4
WHOLE, DYING = "whole", "nodes-die"


class Doomed:
    """The working nodes of a cluster, all but one of which are killed."""

    def __init__(self, nodes: NodesOfRay) -> None:
        self._nodes = nodes
        self._left = [nodes.add() for _ in range(NUM_NODES)]

    @property
    def num_killed(self) -> int:
        return NUM_NODES - len(self._left)

    def kill(self) -> None:
        """Kill the next node, unless it is the last one."""
        if len(self._left) > 1:
            self._nodes.kill(self._left.pop(0))


@contextmanager
def doomed_nodes() -> Generator[Doomed]:
    from nunatak_cluster.session import joined  # noqa: PLC0415 - imports Ray, in two seconds

    # This process joins first, because it must not join through a node that will be killed.
    with ray_nodes(head_cpus=0) as nodes, joined("ray"):
        yield Doomed(nodes)


@pytest.fixture(name="place", scope="module")
def make_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.mark.parametrize(("num_runs", "kills"), [(2, 0), (24, NUM_NODES - 1)], ids=[WHOLE, DYING])
def test_a_sweep_gives_the_weights_of_runs_alone(num_runs: int, kills: int, tmp_path: Path) -> None:
    from nunatak_cluster.runs import OnRay  # noqa: PLC0415 - as above

    recipe: JsonValue = {"epochs": 100, "max_length": 32}
    runs = toy_runs(toy_folder(tmp_path), seeds=list(range(num_runs)), recipe=recipe)
    alone = {it.run.digest: it.outcome for it in map(RunContext().run, runs)}

    found = dict[str, object]()
    with doomed_nodes() as doomed:
        for record in OnRay(checkpoints=tmp_path / "results")(runs):
            found[record.run.digest] = record.outcome
            if len(found) % 4 == 3:
                doomed.kill()

    assert doomed.num_killed == kills
    assert found == alone
    digests = [it.weights_digest for it in found.values() if isinstance(it, Finished)]
    assert len(set(digests)) == len(runs) == len(digests)
    assert not list((tmp_path / "results").rglob("*.safetensors"))


@of_all_nodes
def test_the_command_prints_what_each_run_cost(tmp_path: Path) -> None:
    file, results = toy_file(toy_folder(tmp_path / "toys"), seeds=[1, 2]), tmp_path / "results"

    ran = nunatak("sweep", "run", str(file), "--results", str(results), "--on", "ray")

    assert ran.exit_code == 0, ran.stderr
    assert "CPU time" in ran.stdout
    assert "2 runs, 0 failed" in ran.stdout
    assert len(ResultsFolder(results).records()) == 2


@pytest.mark.parametrize(("chunks", "kills"), [(8, 0), (60, NUM_NODES - 1)], ids=[WHOLE, DYING])
def test_a_corpus_has_the_bytes_of_one_machine(
    chunks: int, kills: int, place: Path, tmp_path: Path
) -> None:
    num_rows, written = chunks * CHUNK_ROWS, list[object]()
    corpus = make_corpus(tmp_path / "in.jsonl", num_rows, broken=(3, 40))
    score(place, corpus, tmp_path / "here.jsonl", tasks=TASKS)

    with doomed_nodes() as doomed:

        def advance(chunk: object) -> None:
            written.append(chunk)
            if len(written) % 15 == 9:
                doomed.kill()

        there = tmp_path / "there.jsonl"
        score(place, corpus, there, tasks=TASKS, on_chunk=advance, on="ray", scorers=NUM_NODES)

    assert doomed.num_killed == kills
    assert there.read_bytes().count(b"\n") == num_rows - 2
    for kind in ("jsonl", "rejected.jsonl"):
        mine, theirs = (tmp_path / f"{it}.{kind}" for it in ("here", "there"))
        assert mine.read_bytes() == theirs.read_bytes()


@of_all_nodes
def test_scorers_find_a_registry_that_is_named_from_the_folder_of_the_caller(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", 4)
    # The scorers run in the folder in which the cluster began.
    monkeypatch.chdir(place.parent)

    score(Path(place.name), corpus, tmp_path / "out.jsonl", on="ray", scorers=2)

    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 4


@of_all_nodes
def test_an_error_of_a_scorer_keeps_its_code(place: Path, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "in.jsonl", 4)

    ran = nunatak(
        *("predict-file", str(corpus), str(tmp_path / "out.jsonl"), "--task", "tone"),
        *("--registry", str(place / "registry"), "--backbone", "minilm", "--on", "ray"),
        *("--scorers", "1"),
    )

    assert ran.exit_code == 1
    assert "backbone_mismatch" in ran.stderr


@pytest.mark.parametrize(
    ("address", "code", "named"),
    [("slurm", "invalid_option", "slurm"), ("ray", "ray_unavailable", "RAY_ADDRESS=127.0.0.1:9")],
)
@of_all_nodes
def test_a_command_without_a_cluster_says_how_to_start_one(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    code: str,
    named: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    corpus = make_corpus(tmp_path / "in.jsonl", 4)

    with pytest.raises(NunatakError, match=named) as refused:
        score(place, corpus, tmp_path / "out.jsonl", on=address)

    assert refused.value.code == code
    assert not (tmp_path / "out.jsonl.parts").exists()
