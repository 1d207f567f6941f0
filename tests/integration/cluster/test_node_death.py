"""Nodes that are killed cost time, and neither a run, nor a row, nor a bit of the results."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from doubles.clusters import NodesOfRay, ray_nodes
from doubles.corpora import CHUNK_ROWS, TASKS, make_corpus, make_place
from doubles.sweeps import toy_folder, toy_runs
from nunatak_cli.corpus.job import CorpusJob, run_job
from nunatak_cluster.runs import OnRay
from nunatak_cluster.session import joined
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings
from nunatak_training.sweeps import OneByOne, RunContext

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
KILLS = 3
PERIOD_S = 15.0


@contextmanager
def dying_nodes() -> Generator[list[int]]:
    """Give a cluster whose only working node is killed and replaced; yield the kills so far."""
    kills, is_over = list[int](), threading.Event()

    def kill(nodes: NodesOfRay) -> None:
        for number in count(1):
            node = nodes.add(num_cpus=2)
            if is_over.wait(PERIOD_S if number <= KILLS else None):
                return
            nodes.kill(node)
            kills.append(number)

    with ray_nodes(head_cpus=0) as nodes:
        killer = threading.Thread(target=kill, args=(nodes,))
        killer.start()
        try:
            yield kills
        finally:
            is_over.set()
            killer.join()


def test_a_sweep_whose_nodes_die_gives_the_weights_of_runs_alone(tmp_path: Path) -> None:
    runs = toy_runs(toy_folder(tmp_path), seeds=list(range(24)), recipe={"epochs": 400})
    alone = {it.run.digest: it.outcome for it in OneByOne(RunContext())(runs)}

    with dying_nodes() as kills, joined("ray"):
        found = {it.run.digest: it.outcome for it in OnRay(checkpoints=tmp_path / "results")(runs)}

    assert len(kills) >= 1
    assert found == alone


def test_a_corpus_whose_nodes_die_has_the_bytes_of_one_machine(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    corpus = make_corpus(tmp_path / "in.jsonl", 6000)
    settings = ServerSettings(
        registry=str(place / "registry"), backbone=str(place / "backbone"), compute_threads=1
    )

    def score(out: Path, on: str | None) -> None:
        job = CorpusJob(corpus=str(corpus), out=out, references=TASKS, chunk_rows=CHUNK_ROWS, on=on)
        with Registry.open(place / "registry", create=False) as registry:
            run_job(job, registry, settings=settings)

    score(tmp_path / "here.jsonl", None)

    with dying_nodes() as kills:
        score(tmp_path / "there.jsonl", "ray")

    assert len(kills) >= 1
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
