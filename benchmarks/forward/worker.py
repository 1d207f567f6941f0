"""Peers in their own virtual environments, because their packages clash with the project's.

A peer runs as a process that answers one request at a time (`peers/protocol.py`), so that it can
take turns with the systems of this process.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save
from torch import Tensor

from benchmarks.harness.environments import interpreter
from benchmarks.harness.rounds import FP32_TOLERANCE, System

PEERS = Path(__file__).with_name("peers")


class Peer(StrEnum):
    """A library that runs in its own environment; `peers` holds a worker for each."""

    ADAPTERS = "adapters"
    ONNXRUNTIME = "onnxruntime"
    ONNX_ENCODERS = "onnx_encoders"
    """onnxruntime with the encoder of any architecture."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of the peer's environment."""
        match self:
            case Peer.ADAPTERS:
                torch_version = version("torch").partition("+")[0]
                return (f"torch=={torch_version}", "adapters==1.3.0", "transformers==4.57.6")
            case Peer.ONNXRUNTIME | Peer.ONNX_ENCODERS:
                return ("onnxruntime==1.31.1", "onnx==1.23.2")

    @property
    def sees(self) -> list[str]:
        """The folders of the project's packages, if they do not clash with the peer's."""
        if self is Peer.ADAPTERS:
            return []
        return [path for path in sys.path if Path(path).name == "site-packages"]


class WorkerError(Exception):
    """A peer's process ended, or has no pipes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A running peer."""

    peer: Peer
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
        """Block until the peer has built its models."""
        self._read("ready")

    def _ask(self, what: str, case: str, field: str) -> Any:  # noqa: ANN401 - JSON
        self.requests.write(json.dumps({"do": what, "case": case}) + "\n")
        self.requests.flush()
        return self._read(field)

    def _read(self, field: str) -> Any:  # noqa: ANN401 - JSON
        line = self.replies.readline()
        if not line:
            raise WorkerError(f"the process of {self.peer} ended; its last words are above")
        return json.loads(line)[field]


@contextmanager
def running(peer: Peer, job: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Generator[Worker]:
    """Start a peer on a job; the peer has as many threads as this process.

    Raises:
        WorkerError: the peer could not build its models.
    """
    environment = Peer.ONNXRUNTIME if peer is Peer.ONNX_ENCODERS else peer
    python = interpreter(environment, peer.packages, sees=peer.sees)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"num_threads": torch.get_num_threads(), **job}
        (Path(folder) / "job.json").write_text(json.dumps(settings))
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        (Path(folder) / "tensors.safetensors").write_bytes(save(contiguous))
        command = [str(python), str(PEERS / f"{peer}_worker.py"), folder]
        process = subprocess.Popen(  # noqa: S603 - our own script
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if process.stdin is None or process.stdout is None:
            raise WorkerError(f"the process of {peer} has no pipes")
        with process, process.stdin, process.stdout:
            worker = Worker(peer=peer, requests=process.stdin, replies=process.stdout)
            worker.wait_until_ready()
            yield worker
