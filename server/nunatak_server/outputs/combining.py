"""Combining: one answer from the windows of a text that is too long to read at once.

The model reads each window as if it were a whole text. The logits of the text follow from the
logits of its windows:

- several labels: each label gets its largest logit, because one place in a text is enough;
- one label with a default label that means "nothing found": the window in which another label is
  most likely, because one window with a finding is enough;
- one label without a default: the mean of the probabilities;
- a value: the mean;
- the score of a document: the best window (MaxP, Dai and Callan 2019, arXiv:1905.09217).

Windows overlap by half, so the last window is more than half full. A mean weighted by tokens would
differ little, and the plain mean is easier to check.
"""

import math
from collections.abc import Sequence

from nunatak_contract.enums import ProblemType
from nunatak_contract.heads import HeadRecord

Logits = Sequence[float]


def combine_windows(windows: Sequence[Logits], head: HeadRecord) -> Logits:
    """Return the logits of a text or document from the logits of its windows, one or more.

    A mean of probabilities becomes logits by its logarithm, so that softmax returns the mean.
    """
    if len(windows) == 1:
        return windows[0]
    match head.problem_type:
        case ProblemType.MULTI_LABEL | None:
            return list(map(max, zip(*windows, strict=True)))
        case ProblemType.REGRESSION:
            return [sum(values) / len(windows) for values in zip(*windows, strict=True)]
        case ProblemType.SINGLE_LABEL if head.default_label is not None:
            default = head.labels.index(head.default_label)
            return max(windows, key=lambda logits: _strongest_finding(logits, default))
        case ProblemType.SINGLE_LABEL:
            return _log_mean(windows)


def _strongest_finding(logits: Logits, default: int) -> float:
    """Return the log-odds of the best label other than the default.

    Log-odds order windows like the probability of the label, also when probabilities round to 1.
    """
    others = [logit for label, logit in enumerate(logits) if label != default]
    best = max(others)
    others.remove(best)
    return best - _log_sum([*others, logits[default]])


def _log_mean(windows: Sequence[Logits]) -> list[float]:
    """Return the logarithms of the mean probabilities, without underflow."""
    totals = [_log_sum(logits) for logits in windows]
    logs = [
        [logit - total for logit in logits] for logits, total in zip(windows, totals, strict=True)
    ]
    return [_log_sum(values) - math.log(len(windows)) for values in zip(*logs, strict=True)]


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))
