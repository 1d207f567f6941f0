"""The common arguments of the parts of the savings report: folders, sizes, cores and options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.makers import TaskPlan, export_adapter, export_full_model, publish_missing
from benchmarks.harness.recording import ROOT, Sheet
from benchmarks.harness.shapes import Shape, backbone_folder
from benchmarks.savings.race import Effort
from benchmarks.savings.systems import Deployment, System
from nunatak_model import Backbone, load_backbone

WORK = ROOT / ".bench" / "savings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The sizes of all measurements."""

    ours: Mapping[Shape, tuple[int, ...]]
    """Numbers of tasks of our server's memory lines."""
    copies: Mapping[Shape, tuple[int, ...]]
    """Numbers of full models; the lines are extrapolated beyond the last number."""
    processes: tuple[int, ...]
    settling_s: float
    """Seconds between the last answer and the measurement of the memory."""
    race_tasks: int
    racers: tuple[System, ...]
    race_effort: Effort
    race_goals: Mapping[str, str]
    """The goal of each scenario: our rate over that of the best baseline."""


FULL = Extent(
    ours={Shape.MINILM: (1, 25, 50, 75, 100), Shape.BERT_BASE: (1, 25, 50, 75, 100)},
    copies={Shape.MINILM: (1, 8, 16, 32), Shape.BERT_BASE: (1, 4, 8)},
    processes=(1, 2, 4),
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
    race_goals={"single": ">= 1.3", "fanout8": ">= 2"},
)
SMOKE = Extent(
    ours={Shape.TINY: (1, 3)},
    copies={Shape.TINY: (1, 2)},
    processes=(),
    settling_s=0.0,
    race_tasks=2,
    racers=(System.NUNATAK, System.NUNATAK_BFLOAT16, System.FULL_MODELS),
    race_effort=Effort(look_s=0.5, requests=5, longest_s=1.0),
    race_goals={"single": ">= 1.3"},
)
"""Sizes for a run of a few seconds that only tests the code; the figures mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The arguments of every part."""

    work: Path
    """Folder of backbones, registries and exported tasks: made on demand, kept for later runs."""
    sheet: Sheet
    extent: Extent
    cores: tuple[int, ...] | None

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
