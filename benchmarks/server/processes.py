"""A local fleet: the memory of several processes that share a backbone, and their replacement.

`memory` compares four processes with one, in PSS, on a backbone of the shape of BERT base. The
interpreters are subtracted: the same processes with the same tasks on a backbone that has almost no
weights. The control is four single servers. Each process answers for every task before its memory
is read. Each process has its own copy of the tasks, so the ratio grows with their number.

`rolling` replaces all processes under load, by SIGHUP. Callers keep their connections and never
repeat a request. The control has no drain delay.

    PYTHONPATH=tests python -m benchmarks.server.processes
"""

import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import psutil

from benchmarks.harness.makers import LORA, SMALL_HEAD, plans, publish_missing
from benchmarks.harness.recording import ROOT, Sheet, figures_parser, open_sheet
from benchmarks.harness.shapes import Shape, backbone_folder
from doubles.lifecycles import LIMIT_S, make_site
from doubles.processes import server_process
from doubles.shared_ports import SCRIPT, SharedPort, asking, shared_port, wait_until
from nunatak_contract.wire import ReplicaReport
from nunatak_model import load_backbone
from nunatak_registry import Registry
from nunatak_server.template import DRAIN_DELAY_S

NUM: Final = 4
NUM_RENEWALS: Final = 5
TEXT: Final = "Where is my parcel, and who can tell me more about it?"
WORK: Final = ROOT / ".bench" / "processes"
NO_CACHE: Final = 0
MANY: Final = 40


def main() -> None:
    """Measure and record the requested parts."""
    parser = figures_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--shape", type=Shape, default=Shape.BERT_BASE, help="of the backbone")
    options, sheet = open_sheet(parser)
    for part in options.parts:
        PARTS[part](sheet, options.shape)


def memory(sheet: Sheet, shape: Shape) -> None:
    """Record the ratio for few tasks, with its control, and for many tasks."""
    for num_tasks in (8, MANY):
        bare, whole = pss_of(Shape.TINY, num_tasks), pss_of(shape, num_tasks)
        one = whole["one"] - bare["one"]
        unit = f"times the weights of one process, {num_tasks} LoRA tasks; PSS"
        if num_tasks == MANY:
            ratio = (whole["shared"] - bare["shared"]) / one
            sheet.record(f"cluster.fleet.memory_ratio.tasks{MANY}", [ratio], unit=unit)
            continue
        for name, ending, goal in (("shared", "", "<= 1.5"), ("apart", ".without_sharing", ">= 3")):
            ratio = (whole[name] - bare[name]) / one
            note = "" if not ending else " (control)"
            sheet.record(
                f"cluster.fleet.memory_ratio{ending}", [ratio], unit=unit + note, goal=goal
            )
        whole_ratio = whole["shared"] / whole["one"]
        unit = f"times the whole PSS of one process, {NUM} processes, {num_tasks} LoRA tasks"
        sheet.record("cluster.fleet.memory_ratio.with_interpreters", [whole_ratio], unit=unit)
        sheet.record("cluster.fleet.pss_mib", [whole["shared"] / 2**20], unit="MiB PSS of all")


def pss_of(shape: Shape, num_tasks: int) -> Mapping[str, int]:
    """Return the bytes of a fleet, of one server, and of as many single servers."""
    backbone = backbone_folder(shape, WORK / "backbones")
    wanted = plans(num_tasks, [LORA], head=SMALL_HEAD)
    tasks = [it.name for it in wanted]
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        publish_missing(registry, wanted, load_backbone(backbone))
        # First, because the rows of killed servers stay in the registry for a while.
        with shared_port(registry, backbone, processes=NUM, trunk_cache_bytes=NO_CACHE) as fleet:
            for address in addresses_of(registry):
                ask_for_all(address, tasks)
            shared = pss([fleet.supervisor, *fleet.templates(), *fleet.replicas()])
        one, apart = (alone(registry, backbone, tasks, num_servers=it) for it in (1, NUM))
    return {"shared": shared, "one": one, "apart": apart}


def alone(registry: Path, backbone: Path, tasks: Sequence[str], *, num_servers: int) -> int:
    """Return the bytes of single servers together."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                server_process(
                    registry=registry,
                    backbone=backbone,
                    script=SCRIPT,
                    access_log=False,
                    trunk_cache_bytes=NO_CACHE,
                )
            )
            for _ in range(num_servers)
        ]
        for server in servers:
            ask_for_all(server.address, tasks)
        return pss([psutil.Process(it.process.pid) for it in servers])


def addresses_of(registry: Path) -> Sequence[str]:
    """Return the own addresses of the live replicas."""
    with Registry.open(registry) as opened:
        listed: Sequence[ReplicaReport] = opened.replicas.listing().replicas
    ports = {it.address.rpartition(":")[2] for it in listed}
    found = [f"http://127.0.0.1:{port}" for port in sorted(ports)]
    if len(found) != NUM:
        raise SystemExit(f"expected {NUM} replicas, found {len(found)}")
    return found


def ask_for_all(address: str, tasks: Sequence[str]) -> None:
    """Ask one process for every task."""
    body = {"inputs": TEXT, "tasks": tasks}
    answer = httpx.post(f"{address}/v1/predict", json=body, timeout=LIMIT_S)
    answer.raise_for_status()
    if any("error" in it for it in answer.json()["results"]):
        raise SystemExit(f"{address} refused a task")


def pss(processes: Sequence[psutil.Process]) -> int:
    """Return the proportional bytes of processes together."""
    return sum(it.memory_full_info().pss for it in processes)


def rolling(sheet: Sheet, _: Shape) -> None:
    """Record the failed requests while all processes are replaced."""
    for ending, drain_delay_s in (("", DRAIN_DELAY_S), (".control", 0)):
        num_failed, num_asked = rolled(drain_delay_s)
        goal = ">= 1" if ending else "<= 0"
        note = " without drain delay (control)" if ending else ""
        unit = f"failed of {num_asked} requests around {NUM_RENEWALS} replacements{note}"
        sheet.record(f"cluster.fleet.rolling.failed{ending}", [num_failed], unit=unit, goal=goal)


def rolled(drain_delay_s: int) -> tuple[int, int]:
    """Replace the processes of a small fleet again and again; return failed and all requests."""
    with tempfile.TemporaryDirectory() as folder:
        site = make_site(Path(folder))
        with shared_port(
            site.registry, site.backbone, processes=2, drain_delay_s=drain_delay_s
        ) as fleet:
            with asking(fleet.port) as callers:
                for _ in range(NUM_RENEWALS):
                    renew(fleet)
            return callers.num_failed, callers.num_cut + callers.statuses.total()


def renew(fleet: SharedPort) -> None:
    """Replace all processes, and return when the old ones have ended."""
    old = fleet.templates()
    fleet.server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not any(it.is_running() for it in old))
    time.sleep(1)


PARTS = {"memory": memory, "rolling": rolling}


if __name__ == "__main__":
    main()
