"""One run of a sweep, from its description to its record."""

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from nunatak_model import Backbone, ModelError, load_backbone
from nunatak_training.data import load_task_data
from nunatak_training.errors import TrainingError
from nunatak_training.evaluation import evaluate
from nunatak_training.fitting import TrainedTask, fit_task
from nunatak_training.metrics import Metric
from nunatak_training.report import SilentReport
from nunatak_training.sweeps.cuts import CutData, cut_data
from nunatak_training.sweeps.planning import Run, Source
from nunatak_training.sweeps.records import EpochRecord, Failed, Finished, RunRecord
from nunatak_training.trunk import DiskTrunkStore

LOADED_SOURCES = 2


class Bench:
    """What runs share: the backbone and the data that were loaded last, and trunk states."""

    def __init__(self, *, device: str = "cpu") -> None:
        self.device = device
        self.backbone = lru_cache(maxsize=1)(self._load_backbone)
        self.data = lru_cache(maxsize=LOADED_SOURCES)(_load_data)
        self._trunks = DiskTrunkStore()

    def _load_backbone(self, name: str) -> Backbone:
        return load_backbone(name, device=self.device)

    def run(self, run: Run) -> RunRecord:
        """Train and score; what is wrong with the run, and not with the program, is its outcome."""
        clock = _Clock(wall=time.perf_counter(), cpu=time.process_time())
        try:
            outcome: Finished | Failed = self._outcome(run)
        except (TrainingError, ModelError) as error:
            outcome = Failed(code=error.code, message=str(error))
        return RunRecord(
            run=run.description,
            outcome=outcome,
            seconds=round(time.perf_counter() - clock.wall, 3),
            cpu_seconds=round(time.process_time() - clock.cpu, 3),
            environment={
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "device": self.device,
                "threads": torch.get_num_threads(),
            },
        )

    def fit(self, run: Run) -> TrainedTask:
        """Train; the same run gives the same parameters on the same machine.

        Raises:
            TrainingError: the run is at fault.
            ModelError: its method does not fit the backbone.
        """
        backbone, cut = self.backbone(run.backbone), self.data(run.source)
        return fit_task(
            cut.data,
            run.description.recipe,
            backbone,
            report=SilentReport(),
            trunks=self._trunks,
        )

    def _outcome(self, run: Run) -> Finished:
        trained, test = self.fit(run), self.data(run.source).test
        tested = None if test is None else evaluate(trained, test, self.backbone(run.backbone))
        return _finished(trained, tested or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    wall: float
    cpu: float


def _load_data(source: Source) -> CutData:
    data = load_task_data(source.data, kind=source.kind, dev=source.dev)
    return cut_data(data, source.cut)


def _finished(trained: TrainedTask, test_scores: Mapping[Metric, float]) -> Finished:
    scores = {metric.value: value for metric, value in trained.scores.items()}
    return Finished(
        metric=next(iter(scores)),
        scores=scores,
        test_scores={metric.value: value for metric, value in test_scores.items()},
        num_parameters=sum(tensor.numel() for tensor in trained.parameters.values()),
        best_epoch=trained.best_epoch,
        epochs=tuple(
            EpochRecord(
                epoch=result.epoch,
                step=result.step,
                train_loss=result.train_loss,
                dev_loss=result.dev_loss,
                dev_score=result.dev_score,
            )
            for result in trained.history
        ),
    )
