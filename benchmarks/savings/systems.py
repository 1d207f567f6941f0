"""The measured systems: their names, and their start with a set of tasks.

All systems are pinned to the same cores and get one thread per core. Each file below `peers`
describes its baseline.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from benchmarks.harness.environments import interpreter
from benchmarks.harness.makers import TaskPlan, export_adapter, export_full_model, publish_missing
from benchmarks.harness.recording import ROOT
from benchmarks.harness.shapes import Shape, backbone_folder
from nunatak_model import Backbone, load_backbone

WORK = ROOT / ".bench" / "savings"
PEERS_FOLDER = ROOT / "benchmarks" / "peers"
READY = "ready on "
STOP_TIMEOUT_S, START_TIMEOUT_S = 30, 120


Cores = tuple[int, ...] | None
"""None means any core."""


class System(StrEnum):
    """Ways to serve many tasks."""

    NUNATAK = "nunatak"
    NUNATAK_BFLOAT16 = "nunatak_bfloat16"
    NUNATAK_INT8 = "nunatak_int8"
    NUNATAK_FULL = "nunatak_full"
    FULL_MODELS = "full_models"
    FULL_MODELS_PRIVATE = "full_models_private"
    PACKED_MODELS = "packed_models"
    ONNXRUNTIME = "onnxruntime"
    ONNXRUNTIME_INT8 = "onnxruntime_int8"
    PROCESSES_PRIVATE = "processes_private"
    PROCESSES_MAPPED = "processes_mapped"
    PEFT_SWITCH = "peft_switch"
    PEFT_MIXED = "peft_mixed"

    @property
    def is_ours(self) -> bool:
        """Whether the system is our server, and no baseline."""
        return self.startswith("nunatak")

    @property
    def is_rounded(self) -> bool:
        """Whether the system always computes in fewer bits than float32."""
        return self.endswith(("_bfloat16", "_int8"))


class Baseline(NamedTuple):
    """A program of `peers`, and its mode."""

    script: str
    mode: str = ""
    folders: str = "full"
    """What the system loads: `full` models, or the adapters of `peft`."""
    is_apart: bool = False
    """Whether each task has its own process."""


BASELINES: Mapping[System, Baseline] = {
    System.FULL_MODELS: Baseline("full_models.py", "mapped"),
    System.FULL_MODELS_PRIVATE: Baseline("full_models.py", "private"),
    System.PACKED_MODELS: Baseline("packed_models.py"),
    System.ONNXRUNTIME: Baseline("onnxruntime_models.py", "model.onnx"),
    System.ONNXRUNTIME_INT8: Baseline("onnxruntime_models.py", "rounded.onnx"),
    System.PROCESSES_PRIVATE: Baseline("full_models.py", "private", is_apart=True),
    System.PROCESSES_MAPPED: Baseline("peft_adapters.py", "switch", "peft", is_apart=True),
    System.PEFT_SWITCH: Baseline("peft_adapters.py", "switch", "peft"),
    System.PEFT_MIXED: Baseline("peft_adapters.py", "mixed", "peft"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The tasks to serve, in the layouts of all systems, and the cores to use."""

    backbone: Path
    registry: Path
    tasks: tuple[str, ...]
    folder: Path
    """Folder of `full/NAME` and `peft/NAME`."""
    cores: Cores
    """Cores of the systems."""
    log: Path
    options: tuple[str, ...] = ()
    """Further options of `nunatak serve`."""

    def folders(self, system: System) -> tuple[Path, ...]:
        return tuple(self.folder / BASELINES[system].folders / task for task in self.tasks)

    def of(self, tasks: tuple[str, ...]) -> "Deployment":
        return replace(self, tasks=tasks)

    def first(self, count: int) -> "Deployment":
        return self.of(self.tasks[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Makes deployments below a folder, and keeps them for later runs."""

    work: Path = WORK
    cores: Cores = None

    def backbone(self, shape: Shape) -> Backbone:
        return load_backbone(backbone_folder(shape, self.work / "backbones"))

    def deployment(
        self,
        shape: Shape,
        name: str,
        plans: Sequence[TaskPlan],
        *,
        options: tuple[str, ...] = (),
        full_models: Sequence[TaskPlan] = (),
        adapters: Sequence[TaskPlan] = (),
    ) -> Deployment:
        """Publish missing tasks, export folders for the baselines, and return their locations."""
        folder = self.work / f"{shape}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        backbone = self.backbone(shape)
        publish_missing(folder / "registry", plans, backbone)
        for plan in full_models:
            export_full_model(plan, backbone, folder)
        for plan in adapters:
            export_adapter(plan, backbone, folder)
        return Deployment(
            backbone=backbone_folder(shape, self.work / "backbones"),
            registry=folder / "registry",
            tasks=tuple(plan.name for plan in plans),
            folder=folder,
            cores=self.cores,
            log=folder / "systems.log",
            options=options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running system: the address for each task, and the processes."""

    system: System
    addresses: dict[str, str]
    pids: tuple[int, ...]

    def memory(self) -> tuple[int, int]:
        """Return PSS and RSS of all processes of the system and their children."""
        processes = {it.pid: it for pid in self.pids for it in _family(pid)}
        full = [it.memory_full_info() for it in processes.values()]
        return sum(it.pss for it in full), sum(it.rss for it in full)

    def pss(self) -> int:
        return self.memory()[0]

    def alone(self) -> int:
        """Return the PSS as if the system's one process had the machine to itself.

        Pages of libraries count whole, however many other processes map the same libraries. Their
        part of the PSS would change whenever an unrelated process starts or ends.
        """
        maps = [it for pid in self.pids for it in psutil.Process(pid).memory_maps(grouped=True)]
        return sum(it.rss if ".so" in Path(it.path).name else it.pss for it in maps)


class StartError(Exception):
    """A system ended, or printed nothing, before it was ready."""


@contextmanager
def running(system: System, deployment: Deployment) -> Generator[Started]:
    """Start a system and wait until it accepts requests; end the system after the block."""
    are_apart = system in BASELINES and BASELINES[system].is_apart
    groups = [[it] for it in deployment.tasks] if are_apart else [list(deployment.tasks)]
    with ExitStack() as stack:
        addresses, pids = dict[str, str](), list[int]()
        for group in groups:
            command = _command(system, deployment, group)
            process, address = stack.enter_context(_process(command, deployment))
            pids.append(process.pid)
            addresses |= dict.fromkeys(group, address)
        yield Started(system=system, addresses=addresses, pids=tuple(pids))


@contextmanager
def _process(
    command: Sequence[str], deployment: Deployment
) -> Generator[tuple[subprocess.Popen[str], str]]:
    threads = str(len(deployment.cores)) if deployment.cores else str(os.cpu_count())
    environment = os.environ | {
        "OMP_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    with ExitStack() as stack:
        log = stack.enter_context(deployment.log.open("a"))
        process = subprocess.Popen(  # noqa: S603 - our own commands; no shell
            pinned(command, deployment.cores),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        stack.callback(_end, process)
        if process.stdout is None:
            raise StartError("the output of a process was asked for and is not there")
        for line in process.stdout:
            if READY in line:
                address = line.partition(READY)[2].strip()
                _wait_until_it_listens(process, address)
                yield process, address
                return
        raise StartError(f"{command[1]} ended with code {process.wait()}, see {deployment.log}")


def _wait_until_it_listens(process: subprocess.Popen[str], address: str) -> None:
    """Wait for the socket: some systems report that they are ready before they listen."""
    port, end_s = urlsplit(address).port, time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port or 0)):
            return
        time.sleep(0.1)
    raise StartError(f"no process listens at {address} after {START_TIMEOUT_S} s")


def _command(system: System, deployment: Deployment, tasks: Sequence[str]) -> list[str]:
    if system.is_ours:
        dtype = "bfloat16" if system is System.NUNATAK_BFLOAT16 else "float32"
        return [
            *(sys.executable, "-m", "nunatak_cli", "serve"),
            *("--registry", str(deployment.registry)),
            *("--backbone", str(deployment.backbone) + "+int8" * (system is System.NUNATAK_INT8)),
            *("--port", "0", "--dtype", dtype),
            *deployment.options,
        ]
    baseline, wanted = BASELINES[system], set(tasks)
    folders = [it for it in deployment.folders(system) if it.name in wanted]
    return [
        *(str(interpreter_of(system)), str(PEERS_FOLDER / baseline.script)),
        *("--port", str(_free_port())),
        *("--base", str(deployment.backbone)),
        *("--mode", baseline.mode),
        *map(str, folders),
    ]


def interpreter_of(system: System) -> Path:
    """Return the Python that has the packages of a baseline."""
    if system not in {System.ONNXRUNTIME, System.ONNXRUNTIME_INT8}:
        return Path(sys.executable)
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    packages = ("onnxruntime==1.31.1", "onnx==1.23.2")
    return interpreter("onnxruntime_models", packages, sees=shared)


def cores_of(text: str) -> Cores:
    """Read an option such as `0,1` or `any`."""
    numbers = text.split(",")
    if text != "any" and not all(it.isdecimal() for it in numbers):
        raise SystemExit(f"--cores: expected numbers such as 0,1, or `any`, got {text!r}")
    return None if text == "any" else tuple(map(int, numbers))


def pinned(command: Sequence[str], cores: Cores) -> list[str]:
    if cores is None:
        return list(command)
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]


def keep_off(cores: Cores) -> None:
    """Keep this process and its children off these cores, if other cores are allowed."""
    others = os.sched_getaffinity(0) - set(cores or ())
    if others:
        os.sched_setaffinity(0, others)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _end(process: subprocess.Popen[str]) -> None:
    family = _family(process.pid) if process.poll() is None else []
    process.terminate()
    _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
    for it in alive:
        it.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
