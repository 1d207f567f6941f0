"""Rows on their way through the engine: one (text, task version) pair each."""

import asyncio
from dataclasses import dataclass

from nunatak_model import Branch, Encoding
from nunatak_server.batching.senders import ANONYMOUS, Priority
from nunatak_server.errors import BackboneUnhealthyError, ServerError, TaskUnhealthyError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """What the engine computed for one row (token after token), and how long that took."""

    logits: list[float]
    queue_s: float
    compute_s: float
    batch_rows: int
    load_s: float = 0.0
    """How long its version took to come into memory; 0 if it was there."""
    started_at: float = 0.0
    """When its batch began, by the engine's clock."""
    batch: int = 0
    """The number of its batch."""


RowOutcome = RowAnswer | ServerError
"""Failures travel as values: a row nobody waits for any more then leaves no unread exception."""


def backbone_answer(outcome: RowOutcome) -> RowAnswer:
    """Return what became of a row of the backbone alone, which is no version that is rolled back.

    Raises:
        BackboneUnhealthyError: it fails in its forward pass, or its outputs are not finite.
        ServerError: it was not computed.
    """
    match outcome:
        case RowAnswer():
            return outcome
        case TaskUnhealthyError(reason=reason):
            raise BackboneUnhealthyError(reason)
        case _:
            raise outcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRow:
    """A row that waits; its future is resolved once, on the event loop, by the engine."""

    task: str
    version: int
    branch: Branch
    encoding: Encoding
    group: int
    trunk_tokens: int
    branch_tokens: int
    deadline: float
    submitted_at: float
    load_s: float = 0.0
    future: asyncio.Future[RowOutcome]
    trunk_share: float = 0.0
    """Part of the layers that its trunk row passes."""
    caller: str = ANONYMOUS
    priority: Priority = Priority.NORMAL
    is_shadow: bool = False
    """Whether it is computed for comparison alone, in the room that is left."""

    @property
    def trunk_key(self) -> Encoding:
        """Rows of equal encodings share their trunk row."""
        return self.encoding

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has gone; may be read from any thread."""
        return self.future.cancelled()


def count_tokens(
    encoding: Encoding, split_depth: int | None, *, num_layers: int
) -> tuple[int, int]:
    """Return the tokens a row needs as trunk row and as branch row.

    A branch that owns every layer reads no trunk; a head alone has no layers of its own.
    """
    trunk = encoding.num_tokens if split_depth else 0
    own = encoding.num_tokens if split_depth != num_layers else 0
    return trunk, own
