"""The forward pass of one batch, and the outcome of each of its rows."""

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar, cast

import torch

from nunatak_contract.errors import NunatakError
from nunatak_model import (
    Backbone,
    BetweenLayers,
    Branch,
    Encoding,
    Row,
    TrunkStates,
    forward,
    on_device,
    trunk_source,
    without_fast_kernels,
)
from nunatak_server.errors import EngineFailedError, OutOfMemoryError, TaskUnhealthyError
from nunatak_server.scheduler.planner import BatchPlan
from nunatak_server.scheduler.rows import PendingRow, RowAnswer, RowOutcome

logger = logging.getLogger(__name__)

LIBRARY_FAILURE: Final = re.compile(
    r"(?:CUDA|cuDNN) error: (\w+_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR))"
)
"""Messages of cuBLAS and cuDNN for a failed device. Other statuses concern shapes or memory."""
NO_DEVICE_MEMORY: Final = "CUDA error: out of memory"
NO_MEMORY: Final = re.compile(r"_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory")
"""Messages of libraries, and of torch on a CPU, for missing memory."""

WATCHED_BATCHES: Final = 200
"""Batches that are judged together, so that a short disturbance says nothing."""
MUCH_WAITING: Final = 3.0
"""Time over CPU time from which answers are late. The interpreter's lock alone stays below it."""


def device_failure(error: Exception) -> EngineFailedError | OutOfMemoryError | None:
    match error:
        case torch.AcceleratorError():
            # Kernels without memory and failed allocations of pinned memory raise this error, too.
            if str(error).startswith(NO_DEVICE_MEMORY):
                return OutOfMemoryError()
            return EngineFailedError(type(error).__name__)
        case MemoryError() | torch.OutOfMemoryError():
            return OutOfMemoryError()
        case RuntimeError():
            if found := LIBRARY_FAILURE.match(str(error)):
                return EngineFailedError(found[1])
            return OutOfMemoryError() if NO_MEMORY.search(str(error)) else None
        case _:
            return None


AnswerT = TypeVar("AnswerT")


class BackboneInUse:
    """A backbone with its fast kernels, or without them once one of them has failed."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def run(
        self,
        compute: Callable[[Backbone], AnswerT],
        *,
        again: Callable[[Backbone], AnswerT] | None = None,
    ) -> AnswerT:
        """Compute; if that fails, compute by torch's own operations.

        If these succeed, a fast kernel is at fault, and none of them is used any more. Packed
        integers are in the layout of the native product, so its failure fails here as well.
        """
        backbone = self.backbone
        try:
            return compute(backbone)
        except (RuntimeError, MemoryError) as error:
            plain = without_fast_kernels(backbone)
            if device_failure(error) is not None or plain.ops == backbone.ops:
                raise
            # If this fails as well, the work or the device is at fault, and no kernel.
            answer = (again or compute)(plain)
            logger.warning(
                "a fast kernel failed (%s); torch's own operations serve from now on, slower and "
                "right. Start the server with NUNATAK_KERNELS=plain, and report the failure",
                error,
            )
        self.backbone = plain
        return answer


class BatchCompute:
    """The forward pass of one backbone, for the engine thread; loads may share `in_use`."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        trunk: TrunkStates | None = None,
        in_use: BackboneInUse | None = None,
    ) -> None:
        self._in_use = in_use or BackboneInUse(backbone)
        self._trunk = trunk
        # An accelerator gets the kernels of a whole batch ahead, so nothing can preempt the batch.
        self.stops_between_layers = backbone.device.type == "cpu"
        """Whether other rows can preempt a batch that has begun."""

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        """Return the logits of each row, in order; token after token for heads that read tokens.

        `between_layers` needs `stops_between_layers`, and may call this again. Raises
        `EngineFailedError` if no later batch can succeed, `OutOfMemoryError` if a smaller one may.
        """
        try:
            return self._in_use.run(
                partial(self._answers, rows=rows, between_layers=between_layers),
                again=partial(self._answers, rows=rows, between_layers=None),
            )
        except (RuntimeError, MemoryError) as error:
            failure = device_failure(error)
            if failure is not None:
                raise failure from error
            raise

    @property
    def fast_kernels(self) -> tuple[str, ...]:
        return self._in_use.backbone.fast_kernels

    def _answers(
        self, backbone: Backbone, *, rows: Sequence[Row], between_layers: BetweenLayers | None
    ) -> list[list[float]]:
        with on_device(backbone.device), torch.inference_mode():
            outputs = forward(backbone, rows, trunk=self._trunk, between_layers=between_layers)
            # One transfer for the batch, because a copy for each row would wait for the device.
            logits = torch.cat([output.flatten() for output in outputs]).float()
            flat = iter(cast("list[float]", logits.tolist()))
        return [list(islice(flat, output.numel())) for output in outputs]

    def holds_trunk(self, encoding: Encoding, split_depth: int | None) -> bool:
        if self._trunk is None or not split_depth:
            return False
        return split_depth in self._trunk.depths(trunk_source(self._in_use.backbone, encoding))


def holds_trunk(computes: Mapping[str, BatchCompute], row: PendingRow) -> bool:
    return computes[row.spec.backbone].holds_trunk(row.spec.encoding, row.branch.split_depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    number: int
    num_rows: int
    rows_of: Mapping[str, int]
    """Rows by caller, without shadows: a caller learns nothing of the others."""
    num_tokens: int
    num_tasks: int
    num_shared_rows: int
    num_padding_saved: int
    """Tokens that padding each trunk row and each branch row to the longest one would add."""
    started_at: float
    compute_s: float
    """The time of the batch, with the batches that preempted it."""
    worked_s: float
    """The part of this time by the engine's stopwatch: on a CPU, the thread's CPU time."""


BatchObserver = Callable[[BatchReport], None]
"""Receives the report of each batch, on the engine thread."""


def report_of(
    plan: BatchPlan, *, number: int, started_at: float, compute_s: float, worked_s: float
) -> BatchReport:
    specs = [row.spec for row in plan.batch]
    num_on_trunk = sum(it.trunk_tokens > 0 for it in specs)
    num_branch_rows = sum(it.branch_tokens > 0 for it in specs)
    longest_trunk = max((it.trunk_tokens for it in specs), default=0)
    longest_branch = max((it.branch_tokens for it in specs), default=0)
    padded = plan.num_trunk_rows * longest_trunk + num_branch_rows * longest_branch
    return BatchReport(
        number=number,
        num_rows=len(plan.batch),
        rows_of=Counter(row.spec.caller for row in plan.batch if not row.is_shadow),
        num_tokens=plan.num_tokens,
        num_tasks=len({(row.task, row.version) for row in plan.batch}),
        num_shared_rows=num_on_trunk - plan.num_trunk_rows - plan.num_held_rows,
        num_padding_saved=padded - plan.num_tokens,
        started_at=started_at,
        compute_s=compute_s,
        worked_s=worked_s,
    )


class Contention:
    """Compares the time of batches with their CPU time, and warns once."""

    def __init__(self) -> None:
        self._num_batches, self._time_s, self._worked_s = 0, 0.0, 0.0
        self._has_warned = False

    def observe_batch(self, report: BatchReport) -> None:
        self._num_batches += 1
        self._time_s += report.compute_s
        self._worked_s += report.worked_s
        if self._num_batches < WATCHED_BATCHES:
            return
        if self._time_s > MUCH_WAITING * self._worked_s and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the last %d batches took %.1f times their CPU time, so other programs use the "
                "same cores. Answers are late, and policies with a deadline fail. Set "
                "NUNATAK_COMPUTE_THREADS to the number of free cores, or give the server its own",
                WATCHED_BATCHES,
                self._time_s / max(self._worked_s, 1e-9),
            )
        self._num_batches, self._time_s, self._worked_s = 0, 0.0, 0.0


RowLogits = list[float] | NunatakError


class Compute(Protocol):
    @property
    def stops_between_layers(self) -> bool:
        """Whether a call runs `between_layers`, which may then call this again."""
        ...

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]: ...


def compute_rows(
    compute: Compute, rows: Sequence[PendingRow], between_layers: BetweenLayers | None = None
) -> Sequence[RowLogits]:
    """Run rows as one batch; if the batch fails, run each of its task versions alone."""
    # By branch as well: after a restore of the registry, one number may have two contents.
    versions: dict[tuple[str, int, Branch], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        versions[row.task, row.version, row.branch].append(index)
    if len(versions) > 1:
        try:
            return _forward(compute, rows, between_layers)
        except EngineFailedError:
            raise
        except Exception:
            logger.exception("a batch of %d tasks failed; trying each alone", len(versions))
            # The progress of the batch is not known any more, so nothing may preempt it.
            between_layers = None
    groups, has_both = list(versions.values()), len({row.is_shadow for row in rows}) > 1
    if has_both:
        kinds = (False, True)
        groups = [[at for at, it in enumerate(rows) if it.is_shadow is kind] for kind in kinds]
    computed: dict[int, RowLogits] = {}
    for indices in groups:
        part = [rows[index] for index in indices]
        outputs = (
            compute_rows(compute, part)
            if has_both
            else _compute_version(compute, part, between_layers)
        )
        computed.update(zip(indices, outputs, strict=True))
    return [computed[index] for index in range(len(rows))]


def outcome_of(row: PendingRow, logits: RowLogits, batch: BatchReport) -> RowOutcome:
    if isinstance(logits, NunatakError):
        return logits
    if not all(map(math.isfinite, logits)):
        return TaskUnhealthyError(row.task, row.version, "gives outputs that are not finite")
    return RowAnswer(
        logits=logits,
        queue_s=batch.started_at - row.submitted_at,
        compute_s=batch.compute_s,
        batch_rows=batch.rows_of.get(row.spec.caller, 0),
        load_s=row.load_s,
        started_at=batch.started_at,
        batch=batch.number,
    )


def _compute_version(
    compute: Compute, rows: Sequence[PendingRow], between_layers: BetweenLayers | None
) -> Sequence[RowLogits]:
    try:
        return _forward(compute, rows, between_layers)
    except EngineFailedError:
        raise
    except OutOfMemoryError:
        logger.exception("there was no memory for a batch of %d rows", len(rows))
        # A new error, because the traceback of the raised one keeps the tensors of the batch alive.
        return [OutOfMemoryError()] * len(rows)
    except Exception as error:
        task, version = rows[0].task, rows[0].version
        logger.exception("the forward pass of %s/%d failed", task, version)
        reason = f"fails in its forward pass ({type(error).__name__})"
        return [TaskUnhealthyError(task, version, reason)] * len(rows)


def _forward(
    compute: Compute, rows: Sequence[PendingRow], between_layers: BetweenLayers | None
) -> list[list[float]]:
    inputs = [Row(encoding=row.spec.encoding, branch=row.branch) for row in rows]
    return compute(inputs, between_layers=between_layers)
