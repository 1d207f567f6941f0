"""From the rows of a batch to their logits; a task version that fails spares all others."""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from nunatak_model import BetweenLayers, Branch, Row
from nunatak_server.batching.batch_report import BatchReport
from nunatak_server.batching.rows import PendingRow, RowAnswer, RowOutcome
from nunatak_server.errors import (
    EngineFailedError,
    OutOfMemoryError,
    ServerError,
    TaskUnhealthyError,
)

RowLogits = list[float] | ServerError

logger = logging.getLogger(__name__)


class Compute(Protocol):
    """Runs batches on a device, on the engine thread."""

    @property
    def stops_between_layers(self) -> bool:
        """Whether it calls `between_layers`, which may then call it again."""
        ...

    def __call__(
        self, rows: Sequence[Row], *, between_layers: BetweenLayers | None = None
    ) -> list[list[float]]:
        """Return the logits of each row."""
        ...


def compute_rows(
    compute: Compute, rows: Sequence[PendingRow], between_layers: BetweenLayers | None = None
) -> Sequence[RowLogits]:
    """Run rows as one batch; if that fails, each task version of it alone.

    Raises:
        EngineFailedError: no later batch can succeed.
    """
    # By branch too: after a restore of the registry, one number may stand for two contents.
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
            # How much of it is left to overtake is not known any more.
            between_layers = None
    if len({row.is_shadow for row in rows}) > 1:
        return _compute_apart(compute, rows)
    computed: dict[int, RowLogits] = {}
    for indices in versions.values():
        outputs = _compute_version(compute, [rows[index] for index in indices], between_layers)
        computed.update(zip(indices, outputs, strict=True))
    return [computed[index] for index in range(len(rows))]


def outcome_of(row: PendingRow, logits: RowLogits, batch: BatchReport) -> RowOutcome:
    """What the caller of a row is told."""
    if isinstance(logits, ServerError):
        return logits
    if not all(map(math.isfinite, logits)):
        return TaskUnhealthyError(row.task, row.version, "gives outputs that are not finite")
    return RowAnswer(
        logits=logits,
        queue_s=batch.started_at - row.submitted_at,
        compute_s=batch.compute_s,
        batch_rows=batch.num_rows,
        load_s=row.load_s,
        started_at=batch.started_at,
        batch=batch.number,
    )


def _compute_apart(compute: Compute, rows: Sequence[PendingRow]) -> Sequence[RowLogits]:
    """Run what callers wait for as if it had no shadows, and then the shadows."""
    computed: dict[int, RowLogits] = {}
    for is_shadow in (False, True):
        indices = [index for index, row in enumerate(rows) if row.is_shadow is is_shadow]
        outputs = compute_rows(compute, [rows[index] for index in indices])
        computed.update(zip(indices, outputs, strict=True))
    return [computed[index] for index in range(len(rows))]


def _compute_version(
    compute: Compute, rows: Sequence[PendingRow], between_layers: BetweenLayers | None
) -> Sequence[RowLogits]:
    """Run rows of one task version; its failure is its own and spares all others."""
    try:
        return _forward(compute, rows, between_layers)
    except EngineFailedError:
        raise
    except OutOfMemoryError:
        logger.exception("there was no memory for a batch of %d rows", len(rows))
        # A new one: the frames of what was raised hold what the batch had made.
        return [OutOfMemoryError()] * len(rows)
    except Exception as error:
        task, version = rows[0].task, rows[0].version
        logger.exception("the forward pass of %s/%d failed", task, version)
        reason = f"fails in its forward pass ({type(error).__name__})"
        return [TaskUnhealthyError(task, version, reason)] * len(rows)


def _forward(
    compute: Compute, rows: Sequence[PendingRow], between_layers: BetweenLayers | None
) -> list[list[float]]:
    inputs = [Row(encoding=row.encoding, branch=row.branch) for row in rows]
    return compute(inputs, between_layers=between_layers)
