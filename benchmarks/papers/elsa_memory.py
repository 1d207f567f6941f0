"""The memory of tasks with N frozen layers in a running server, and of full copies.

Eight tasks with 0, 1, 3 and 6 own layers on all-mpnet-base-v2 are trained shortly if the registry
lacks them, published, loaded one by one and asked. The kernel's count of the process (PSS) stands
next to full copies and to the formula of Lee, Tang and Lin 2020, sec. 4.3.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

from pydantic import BaseModel, ConfigDict

from benchmarks.harness.makers import LORA, export_full_model, plans
from benchmarks.harness.recording import Sheet, hardware
from benchmarks.harness.shapes import Shape
from benchmarks.papers.long_runs import HERE, PaperContext, publish_run, version_name
from benchmarks.savings.footprint import WITHOUT_CACHE, pss_bytes, runtime_bytes
from benchmarks.savings.systems import Deployment, Desk, Started, System
from nunatak_client import Client
from nunatak_contract.enums import Pooling
from nunatak_contract.methods import TopK
from nunatak_model import HeadSpec, ModelSize, load_backbone, model_size, parameters_saved
from nunatak_registry import Registry
from nunatak_training.sweeps.planning import plan_runs, read_grid

BACKBONE, SWEEP = "all-mpnet-base-v2", "elsa-mpnet"
OWN = (0, 1, 3, 6)
TASKS = ("sst2", "cola", "stsb", "mrpc", "rte", "qnli", "trec", "ag_news")
COPIES = (1, 2, 4, 8)
"""Numbers of full copies; the memory between them is a straight line."""
SETTLING_S = 10.0
TOLERANCE = 0.02
"""Largest difference of the measured share from the formula."""
MEMORY = "elsa-memory"
SHORT_EXAMPLES = 200
SHORT: Mapping[str, object] = {
    "train_caps": [SHORT_EXAMPLES],
    "dev_cap": 200,
    "overrides.epochs": 1,
}
"""The training of a version that no run of the plan has published: memory needs no quality."""
KINDS: Mapping[str, Mapping[str, object]] = {
    "cola": {"recipe": {"metric": "matthews_correlation"}},
    "stsb": {"kind": "regression"},
    "mrpc": {"recipe": {"metric": "f1", "positive_label": "equivalent"}},
}


class Memory(BaseModel):
    """One measurement: a line in docs/results/papers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str
    embedding: float
    per_layer: float
    output: float
    """Mean parameters of a head."""
    num_layers: int
    ours: dict[int, list[int]]
    """PSS in bytes with 1, 2, 3, ... tasks, by own layers."""
    private: dict[int, int]
    mapped: dict[int, int]
    """PSS of full copies by their number: with pages of their own, and mapped from files."""
    runtime: dict[str, int]
    """PSS of each system almost without weights."""
    ledger: dict[int, float]
    """The saved share by the server's own count of parameters, by own layers."""
    hardware: str
    date: str

    @property
    def size(self) -> ModelSize:
        return ModelSize(**self.model_dump(include={it.name for it in fields(ModelSize)}))

    @property
    def num_tasks(self) -> int:
        return max(self.private)

    def formula(self, own: int) -> float:
        """The share that the paper's formula saves at the largest number of tasks."""
        frozen = self.num_layers - own
        return parameters_saved(self.size, num_tasks=self.num_tasks, num_frozen=frozen)

    def saved(self, own: int, copies: Mapping[int, int], system: System) -> float:
        """The measured share: growth of our server over growth of full copies."""
        ours = self.ours[own][self.num_tasks - 1] - self.runtime[System.NUNATAK]
        return 1 - ours / (copies[self.num_tasks] - self.runtime[system])

    def saved_private(self, own: int) -> float:
        """The share saved, compared with copies whose pages are all in memory."""
        return self.saved(own, self.private, System.FULL_MODELS_PRIVATE)

    def saved_mapped(self, own: int) -> float:
        """The share saved, compared with mapped copies that have answered one text."""
        return self.saved(own, self.mapped, System.FULL_MODELS)


def read_memory(folder: Path) -> Memory:
    lines = (folder / f"{MEMORY}.jsonl").read_text(encoding="utf-8").splitlines()
    return Memory.model_validate_json(lines[-1])


def record(memory: Memory, sheet: Sheet) -> None:
    for own in memory.ours:
        name = f"paper.elsa.mpnet.saved.n{memory.num_layers - own}"
        formula, unit = memory.formula(own), f"of {memory.num_tasks} full models"
        measured = f"{unit} (PSS); formula {formula:.3f}"
        goal = f">= {formula - TOLERANCE:.3f}"
        sheet.record(f"{name}.pss", [memory.saved_private(own)], unit=measured, goal=goal)
        mapped = f"{unit}, mapped, of which each has answered one text (PSS)"
        sheet.record(f"{name}.pss_mapped", [memory.saved_mapped(own)], unit=mapped)


def publish_missing(data: Path, models: Path, registry: Path) -> None:
    """Publish the versions that the registry lacks, after a short training."""
    tasks = [{"name": task, **KINDS.get(task, {})} for task in TASKS]
    methods = [{"kind": "topk", "frozen": [6, 9, 11]}, {"kind": "head"}]
    changes = {"tasks": tasks, "methods": methods, "seeds": [0], "data_root": str(data)}
    grid = read_grid(HERE / f"{SWEEP}.yaml", {**changes, **SHORT})
    with Registry.open(registry) as opened:
        known = {summary.name for summary in opened.tasks()}
    context = PaperContext(models, 0, checkpoints=None)
    for run in plan_runs(grid, backbone_of=context.backbone, data_of=context.data):
        name = version_name(run)
        if name is not None and name not in known:
            publish_run(run, context.fit(run), context, registry)
            print(f"trained {name}", flush=True)


def measure(
    backbone: Path,
    registry: Path,
    names: Sequence[str],
    *,
    work: Path,
    copied: Sequence[int] = COPIES,
    settling_s: float = SETTLING_S,
) -> Memory:
    """Measure a server that loads the tasks of each number of own layers, and full copies.

    Every load compares the answers to the version's probe with those of training. The tasks
    are `NAME-kN` with N own layers, in the order of loading. The number of tasks is always one of
    the numbers of full copies.
    """
    desk = Desk(work=work)
    tiny = plans(1, (LORA,))
    nothing = desk.deployment(Shape.TINY, "runtime", tiny, options=WITHOUT_CACHE, full_models=tiny)
    systems = (System.NUNATAK, System.FULL_MODELS_PRIVATE, System.FULL_MODELS)
    runtime = {str(it): runtime_bytes(it, nothing, settling_s=settling_s) for it in systems}
    loaded = load_backbone(backbone)
    with Registry.open(registry) as opened:
        heads = [it.manifest.parameter_counts.head for it in opened.tasks() if it.name in names]
    fitting = HeadSpec(num_labels=2, pooling=Pooling.MEAN)
    size = replace(model_size(loaded.config, fitting), output=mean(heads))
    by_own = defaultdict[int, list[str]](list)
    for name in names:
        by_own[own_layers(name)].append(name)
    count, shares = min(map(len, by_own.values())), list[float]()
    copies = plans(count, (TopK(num_layers=1),), prefix="copy")
    for plan in copies:
        export_full_model(plan, loaded, work)
    apart = Deployment(
        backbone=backbone,
        registry=registry,
        tasks=tuple(plan.name for plan in copies),
        folder=work,
        cores=None,
        log=work / "systems.log",
    )

    def counted(started: Started) -> int:
        with Client(*set(started.addresses.values())) as client:
            shares.append(client.memory().saved_share)
        return started.alone()

    ours, ledger = dict[int, list[int]](), dict[int, float]()
    for own, tasks in sorted(by_own.items()):
        held = ("--backbone-layers", str(size.num_layers - own))
        served = replace(apart, tasks=tuple(tasks), options=(*WITHOUT_CACHE, *held))
        numbers = range(1, len(tasks) + 1)
        ours[own] = pss_bytes(
            System.NUNATAK, served, numbers, settling_s=settling_s, count_of=counted
        )
        ledger[own] = shares[-1]
    counts = sorted({it for it in copied if it < count} | {count})
    full = [
        pss_bytes(it, apart, counts, settling_s=settling_s, count_of=Started.alone)
        for it in systems[1:]
    ]
    private, mapped = (dict(zip(counts, them, strict=True)) for them in full)
    return Memory(
        backbone=loaded.name,
        **asdict(size),
        ours=ours,
        private=private,
        mapped=mapped,
        runtime=runtime,
        ledger=ledger,
        hardware=hardware(),
        date=datetime.now(UTC).date().isoformat(),
    )


def own_layers(version: str) -> int:
    return int(version.rpartition("-k")[2])
