"""Nodes that are killed cost time, and neither a run, nor a row, nor a bit of the results."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from doubles.clusters import NodesOfRay, ray_nodes
from doubles.corpora import CHUNK_ROWS, TASKS, make_corpus, make_place
from doubles.sweeps import toy_folder, toy_runs
from nunatak_cli.asking.predict_file import CorpusJob, CorpusOptions, run_job
from nunatak_contract.enums import Kernels
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings
from nunatak_training.sweeps.running import RunContext

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NUM_NODES = 4
NUM_RUNS = 24
NUM_CHUNKS = 60


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


def test_a_sweep_whose_nodes_die_gives_the_weights_of_runs_alone(tmp_path: Path) -> None:
    from nunatak_cluster.runs import OnRay  # noqa: PLC0415 - as above

    recipe: JsonValue = {"epochs": 100, "max_length": 32}
    runs = toy_runs(toy_folder(tmp_path), seeds=list(range(NUM_RUNS)), recipe=recipe)
    alone = {it.run.digest: it.outcome for it in map(RunContext().run, runs)}

    found = dict[str, object]()
    with doomed_nodes() as doomed:
        for record in OnRay(checkpoints=tmp_path / "results")(runs):
            found[record.run.digest] = record.outcome
            if len(found) % 4 == 2:
                doomed.kill()

    assert doomed.num_killed == NUM_NODES - 1
    assert found == alone


def test_a_corpus_whose_nodes_die_has_the_bytes_of_one_machine(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    corpus = make_corpus(tmp_path / "in.jsonl", NUM_CHUNKS * CHUNK_ROWS)
    # Only the process of the tests hides the installed operators.
    settings = ServerSettings(
        registry=str(place / "registry"),
        backbone=str(place / "backbone"),
        compute_threads=1,
        kernels=Kernels.PLAIN,
    )

    with doomed_nodes() as doomed:
        for name, on in (("here", None), ("there", "ray")):
            written = list[object]()

            def advance(
                chunk: object, on: str | None = on, written: list[object] = written
            ) -> None:
                written.append(chunk)
                if on is not None and len(written) % 15 == 1:
                    doomed.kill()

            job = CorpusJob(
                corpus=str(corpus),
                out=tmp_path / f"{name}.jsonl",
                references=TASKS,
                chunk_rows=CHUNK_ROWS,
                options=CorpusOptions(on=on, scorers=NUM_NODES),
            )
            with Registry.open(place / "registry", create=False) as registry:
                run_job(job, registry, settings=settings, on_chunk=advance)

    assert doomed.num_killed == NUM_NODES - 1
    there, here = (tmp_path / f"{name}.jsonl" for name in ("there", "here"))
    assert there.read_bytes() == here.read_bytes()
