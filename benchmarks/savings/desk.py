"""The common arguments of the parts of the savings report: folders, sizes, cores and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.makers import TaskPlan, export_adapter, export_full_model, publish_missing
from benchmarks.harness.recording import PACKAGES, Sheet, commit, hardware
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.savings.race import Effort
from benchmarks.savings.results import AnyResult, Origin, save_result
from benchmarks.savings.systems import Deployment, System
from nunatak_model import Backbone, load_backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The sizes of all measurements."""

    ours: Mapping[Shape, tuple[int, ...]]
    """Numbers of tasks of our server's memory lines."""
    copies: Mapping[Shape, tuple[int, ...]]
    """Numbers of full models; the lines are extrapolated beyond the last number."""
    processes: tuple[int, ...]
    saved_shape: Shape
    saved_tasks: tuple[int, ...]
    saved_frozen: tuple[int, ...]
    settling_s: float
    """Seconds between the last answer and the measurement of the memory."""
    race_tasks: int
    racers: tuple[System, ...]
    race_effort: Effort
    common_rates_per_s: Mapping[str, float]
    many: tuple[int, ...]
    many_seconds: float
    many_burst: int
    """Requests that are sent at once to measure the answers per second."""
    fan_out: tuple[int, ...]
    rounds: int


FULL = Extent(
    ours={Shape.MINILM: (1, 25, 50, 75, 100), Shape.BERT_BASE: (1, 25, 50, 75, 100)},
    copies={Shape.MINILM: (1, 8, 16, 32), Shape.BERT_BASE: (1, 4, 8)},
    processes=(1, 2, 4),
    saved_shape=Shape.ROBERTA_BASE,
    saved_tasks=(2, 4, 8),
    saved_frozen=(6, 9, 11),
    settling_s=6.0,
    race_tasks=16,
    racers=(
        System.NUNATAK,
        System.NUNATAK_BFLOAT16,
        System.FULL_MODELS,
        System.PEFT_SWITCH,
        System.PEFT_MIXED,
        System.LITSERVE,
        System.RAY_SERVE,
    ),
    race_effort=Effort(look_s=5.0, requests=200, longest_s=20.0),
    common_rates_per_s={"single": 20.0, "fanout8": 3.0},
    many=(5, 2_000, 10_000),
    many_seconds=12.0,
    many_burst=256,
    fan_out=(1, 2, 4, 8, 16),
    rounds=3,
)
SMOKE = Extent(
    ours={Shape.TINY: (1, 3)},
    copies={Shape.TINY: (1, 2)},
    processes=(),
    saved_shape=Shape.TINY,
    saved_tasks=(2,),
    saved_frozen=(1,),
    settling_s=0.0,
    race_tasks=2,
    racers=(System.NUNATAK, System.NUNATAK_BFLOAT16, System.FULL_MODELS),
    race_effort=Effort(look_s=0.5, requests=5, longest_s=1.0),
    common_rates_per_s={"single": 10.0},
    many=(2, 4),
    many_seconds=0.5,
    many_burst=16,
    fan_out=(1, 2),
    rounds=1,
)
"""Sizes for a run of a few seconds that only tests the code; the figures mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The arguments of every part."""

    work: Path
    """Folder of backbones, registries and exported tasks: made on demand, kept for later runs."""
    out: Path
    sheet: Sheet
    extent: Extent
    cores: tuple[int, ...] | None
    price_per_hour: float
    """Price of the machine per hour, in any currency."""
    resumes: bool = False

    def backbone(self, shape: Shape) -> Backbone:
        """Load a backbone."""
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

    def origin(self) -> Origin:
        """The command and machine behind the results of this run."""
        return Origin(
            command=self.sheet.command,
            commit=commit(),
            date=datetime.now(UTC).date().isoformat(),
            hardware=hardware(),
            versions={name: version(name) for name in PACKAGES},
        )

    def is_done(self, name: str) -> bool:
        """Whether this run resumes an earlier one that has left this result."""
        return self.resumes and (self.out / f"{name}.json").exists()

    def keep(self, name: str, result: AnyResult) -> None:
        """Write a result for the report."""
        save_result(self.out, name, result)
