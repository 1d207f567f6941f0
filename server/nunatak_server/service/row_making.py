"""Making rows: from the tasks that a request asks, and their encodings, to what is computed."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from nunatak_model import Encoding
from nunatak_server.batching.planned_rows import Companion, PlannedRow, VersionRows
from nunatak_server.batching.rows import count_tokens
from nunatak_server.service.prediction import AskedTask, PredictionRequest
from nunatak_server.traffic.control import TrafficControl
from nunatak_server.traffic.shadows import ShadowRun


class RowMaking:
    """Makes the rows of requests; belongs to the event loop thread."""

    def __init__(self, *, traffic: TrafficControl, num_layers: int) -> None:
        self._traffic = traffic
        self._num_layers = num_layers
        self._groups = itertools.count()

    def rows_of(
        self, request: PredictionRequest, asked: Sequence[AskedTask], *, deadline: float
    ) -> list[VersionRows]:
        """Return one row for each encoding of each task, task by task and input by input."""
        # Equal encodings of one request share a trunk row, so they should meet in one batch.
        groups: dict[Encoding, int] = defaultdict(lambda: next(self._groups))
        return [
            VersionRows(
                manifest=each.manifest,
                rows=tuple(
                    self._row(encoding, groups[encoding], each.manifest.split_depth)
                    for encoding in itertools.chain.from_iterable(each.encodings)
                ),
                caller=request.caller,
                priority=request.priority,
                companion=self._companion(request, each, groups, deadline),
            )
            for each in asked
        ]

    def _companion(
        self,
        request: PredictionRequest,
        asked: AskedTask,
        groups: Mapping[Encoding, int],
        deadline: float,
    ) -> Companion | None:
        if asked.shadow is None:
            return None
        run = ShadowRun(
            answered=asked.manifest,
            shadow=asked.shadow,
            inputs=request.inputs,
            encodings=asked.encodings,
            shadow_encodings=asked.shadow_encodings,
            rows=tuple(
                self._row(encoding, groups[encoding], asked.shadow.split_depth)
                for encoding in itertools.chain.from_iterable(asked.shadow_encodings)
            ),
            deadline=deadline,
        )
        return partial(self._traffic.shadow, run)

    def _row(self, encoding: Encoding, group: int, split_depth: int | None) -> PlannedRow:
        trunk, own = count_tokens(encoding, split_depth, num_layers=self._num_layers)
        return PlannedRow(
            encoding=encoding,
            group=group,
            trunk_tokens=trunk,
            branch_tokens=own,
            trunk_share=(split_depth or 0) / self._num_layers,
        )
