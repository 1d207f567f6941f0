"""Reports: what became of the shadows on this server since it started, by pair of versions."""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from nunatak_registry import TaskManifest
from nunatak_server.residency.keys import VersionKey, key_of
from nunatak_server.traffic.comparison import Comparison

DRIFT_BOUNDS: Final = (0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds of the histogram of drifts; what is beyond the last is counted too."""
MAX_PAIRS: Final = 1000
"""Reports kept; the pair that was compared longest ago goes first."""

Pair = tuple[VersionKey, VersionKey]
"""The version that answered, and the shadow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    """How one shadow did beside one version. Counts are of inputs."""

    compared: int = 0
    agreement: float | None = None
    """The mean over what was compared."""
    errors: int = 0
    dropped: int = 0
    mean_drift: float | None = None
    """The mean over all scores of what was compared."""
    max_drift: float | None = None
    drift_counts: tuple[int, ...] = (0,) * (len(DRIFT_BOUNDS) + 1)
    """Inputs by the largest drift of their scores; one count for each bound, one beyond."""


@dataclass(slots=True, kw_only=True)
class _Tally:
    compared: int = 0
    agreed: float = 0.0
    errors: int = 0
    dropped: int = 0
    num_scores: int = 0
    drift_sum: float = 0.0
    max_drift: float = 0.0
    drift_counts: list[int] = field(default_factory=lambda: [0] * (len(DRIFT_BOUNDS) + 1))

    def report(self) -> ShadowReport:
        return ShadowReport(
            compared=self.compared,
            agreement=self.agreed / self.compared if self.compared else None,
            errors=self.errors,
            dropped=self.dropped,
            mean_drift=self.drift_sum / self.num_scores if self.num_scores else None,
            max_drift=self.max_drift if self.num_scores else None,
            drift_counts=tuple(self.drift_counts),
        )


def pair_of(answered: TaskManifest, shadow: TaskManifest) -> Pair:
    """Return the key of a report."""
    return key_of(answered), key_of(shadow)


class Reports:
    """Adds up; belongs to the event loop thread."""

    def __init__(self) -> None:
        self._tallies: OrderedDict[Pair, _Tally] = OrderedDict()

    def report(self, pair: Pair) -> ShadowReport:
        """Return the report of a pair; an empty one if nothing was compared yet."""
        tally = self._tallies.get(pair)
        return ShadowReport() if tally is None else tally.report()

    def add_comparisons(self, pair: Pair, comparisons: Iterable[Comparison]) -> None:
        """Count inputs that both versions answered."""
        tally = self._tally(pair)
        for comparison in comparisons:
            tally.compared += 1
            tally.agreed += comparison.agreement
            tally.num_scores += len(comparison.drifts)
            tally.drift_sum += sum(comparison.drifts)
            tally.max_drift = max(tally.max_drift, comparison.max_drift)
            tally.drift_counts[bisect_left(DRIFT_BOUNDS, comparison.max_drift)] += 1

    def add_errors(self, pair: Pair, num_inputs: int) -> None:
        """Count inputs on which the shadow failed."""
        self._tally(pair).errors += num_inputs

    def add_dropped(self, pair: Pair, num_inputs: int) -> None:
        """Count inputs on which the shadow was not run, because others had the room."""
        self._tally(pair).dropped += num_inputs

    def _tally(self, pair: Pair) -> _Tally:
        tally = self._tallies.setdefault(pair, _Tally())
        self._tallies.move_to_end(pair)
        if len(self._tallies) > MAX_PAIRS:
            self._tallies.popitem(last=False)
        return tally
