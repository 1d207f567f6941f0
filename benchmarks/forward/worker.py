"""Peers in their own virtual environments: we lack their packages, or theirs clash with ours.

A peer runs as a process that answers one request at a time (`peers/protocol.py`), so that it can
take turns with the systems of this process.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save
from torch import Tensor

from benchmarks.harness.environments import interpreter
from benchmarks.harness.rounds import FP32_TOLERANCE, System, Times, local, race
from benchmarks.harness.workload import Task, tensors_by_task
from benchmarks.savings.systems import PEERS_FOLDER, interpreter_of
from benchmarks.savings.systems import System as PeerSystem
from nunatak_contract.methods import Bottleneck
from nunatak_model import Encoding

PEERS: Mapping[str, Callable[[], Path]] = {
    "adapters": partial(
        interpreter,
        "adapters",
        (f"torch=={version('torch').partition('+')[0]}", "adapters==1.3.0", "transformers==4.57.6"),
    ),
    "onnxruntime": partial(interpreter_of, PeerSystem.ONNXRUNTIME),
}
"""The Python of each peer."""


def race_adapters(
    folder: Path,
    method: Bottleneck,
    tasks: Sequence[Task],
    runs: Mapping[str, Callable[[], Tensor]],
    texts: Sequence[Encoding],
    cases: Mapping[str, Mapping[str, Any]],
    *,
    rounds: int,
) -> Times:
    """Race runs of this process with cases of `adapters`, about the same texts and tasks."""
    job = {
        "backbone": str(folder),
        "num_tasks": len(tasks),
        "size": method.size,
        "first_layer": method.first_layer,
        "texts": [it.token_ids for it in texts],
        "cases": cases,
    }
    with running(job, tensors_by_task(tasks)) as worker:
        systems = [*(local(name, run) for name, run in runs.items()), *map(worker.system, cases)]
        return race(systems, rounds=rounds)


class WorkerError(Exception):
    """A peer's process ended, or has no pipes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A running peer."""

    requests: IO[str]
    replies: IO[str]

    def system(self, case: str, *, tolerance: float = FP32_TOLERANCE) -> System:
        """One case of the peer's job as a system of a race."""
        return System(
            name=case,
            answer=lambda: torch.tensor(self._ask("answer", case, "logits")),
            seconds=lambda: float(self._ask("time", case, "seconds")),
            tolerance=tolerance,
        )

    def wait_until_ready(self) -> None:
        self._read("ready")

    def _ask(self, what: str, case: str, field: str) -> Any:  # noqa: ANN401 - JSON
        self.requests.write(json.dumps({"do": what, "case": case}) + "\n")
        self.requests.flush()
        return self._read(field)

    def _read(self, field: str) -> Any:  # noqa: ANN401 - JSON
        line = self.replies.readline()
        if not line:
            raise WorkerError("the peer's process ended; its last words are above")
        return json.loads(line)[field]


@contextmanager
def running(
    job: Mapping[str, Any], tensors: Mapping[str, Tensor], *, peer: str = "adapters"
) -> Generator[Worker]:
    """Start a peer of `PEERS` on a job; it has as many threads as this process."""
    python, script = PEERS[peer](), PEERS_FOLDER / f"{peer}_worker.py"
    with tempfile.TemporaryDirectory() as folder:
        settings = {"num_threads": torch.get_num_threads(), **job}
        (Path(folder) / "job.json").write_text(json.dumps(settings))
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        (Path(folder) / "tensors.safetensors").write_bytes(save(contiguous))
        command = [str(python), str(script), folder]
        process = subprocess.Popen(  # noqa: S603 - our own script
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if process.stdin is None or process.stdout is None:
            raise WorkerError("the peer's process has no pipes")
        with process, process.stdin, process.stdout:
            worker = Worker(requests=process.stdin, replies=process.stdout)
            worker.wait_until_ready()
            yield worker
