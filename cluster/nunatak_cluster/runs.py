"""Training runs as tasks of a cluster: a run whose node dies is tried again elsewhere.

A run gives the same weights on each try. A try goes on from the last checkpoint if the folder of
checkpoints is on storage that all nodes share; otherwise it begins anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from nunatak_training.sweeps.planning import Run
from nunatak_training.sweeps.results import RunRecord
from nunatak_training.sweeps.running import RunContext, dead_run

MAX_RETRIES: Final = 30
"""Tries after the first one. A run that ends its process each time must end as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """Does as many runs at once as the cluster has cores for."""

    checkpoints: Path
    threads: int = 1
    """Threads of one run, and the cores that Ray reserves for it."""
    device: str = "cpu"

    def __call__(self, runs: Sequence[Run]) -> Iterator[RunRecord]:
        work: Any = ray.remote(_do).options(
            num_cpus=self.threads,
            num_gpus=1 if self.device.startswith("cuda") else 0,
            max_retries=MAX_RETRIES,
        )
        pending = {
            work.remote(run, self.device, self.threads, str(self.checkpoints)): run for run in runs
        }
        try:
            while pending:
                done, _ = ray.wait(list(pending), num_returns=1)
                for reference in done:
                    yield _record_of(reference, pending.pop(reference))
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def _record_of(reference: Any, run: Run) -> RunRecord:  # noqa: ANN401 - Ray's references have no common type
    try:
        return cast("RunRecord", ray.get(reference))
    except RayTaskError:
        raise
    except RayError as error:
        return dead_run(run, f"after {MAX_RETRIES} more tries: {str(error).splitlines()[0]}")


def _do(run: Run, device: str, threads: int, checkpoints: str) -> RunRecord:
    torch.set_num_threads(threads)
    return _context(device, checkpoints).run(run)


@lru_cache(maxsize=1)
def _context(device: str, checkpoints: str) -> RunContext:
    """Keep the backbone and the data between the runs of a worker."""
    return RunContext(device=device, checkpoints=Path(checkpoints))
