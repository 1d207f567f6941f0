"""The confusion matrix of a version, as it is shown."""

from dataclasses import dataclass
from itertools import islice

from nunatak_registry.manifest import TaskManifest

SHOWN_LABELS = 12
"""More columns than this no page and no terminal holds."""
SHOWN_MISTAKES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Counts of all pairs of labels; row = true label, column = predicted label."""

    labels: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """How often a label was predicted in place of the true one."""

    truth: str
    predicted: str
    count: int


def confusion_matrix(manifest: TaskManifest) -> Matrix | None:
    """The whole matrix, in the order of the labels; None if there is none or it is too wide."""
    labels = manifest.head.labels
    if manifest.confusion is None or len(labels) > SHOWN_LABELS:
        return None
    counts = manifest.confusion.counts
    return Matrix(
        labels=labels,
        rows=tuple(
            tuple(counts.get((truth, predicted), 0) for predicted in labels) for truth in labels
        ),
    )


def worst_mistakes(manifest: TaskManifest) -> tuple[Mistake, ...]:
    """The most frequent mistakes, at most `SHOWN_MISTAKES`; none if nothing is recorded."""
    if manifest.confusion is None:
        return ()
    mistakes = [
        Mistake(truth=cell.truth, predicted=cell.predicted, count=cell.count)
        for cell in manifest.confusion.cells
        if cell.truth != cell.predicted
    ]
    ordered = sorted(mistakes, key=lambda it: (-it.count, it.truth, it.predicted))
    return tuple(islice(ordered, SHOWN_MISTAKES))
