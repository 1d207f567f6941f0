"""Combining: one answer from the windows of a text that is too long to be read at once.

Each window is answered by itself, as if it were a whole text, and the windows' logits become those
of the text:

- several labels: each label applies as much as in the window where it applies most, as one place
  in a text is enough for a label;
- one label, of which one means that nothing was found (the default label): the answer of the window
  in which another label is most likely, as one window with a finding is enough;
- one label without such a default: the mean of the windows' probabilities;
- a value: the mean;
- the score of a document: that of its best window (MaxP, Dai and Callan 2019, arXiv:1905.09217).

Neighbouring windows overlap by half, so the last one is more than half full: a mean weighted by
tokens would differ little, and the plain mean is easier to check.
"""

import math
from collections.abc import Sequence

from nunatak_contract.enums import ProblemType
from nunatak_contract.heads import HeadRecord

Logits = Sequence[float]


def combine_windows(windows: Sequence[Logits], head: HeadRecord) -> Logits:
    """Return the logits of a text or document from those of its windows, one or more.

    Of a mean of probabilities the logits are its logarithms, so that softmax gives the mean again.
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
    """Return how far the best label is above the default and all else: its log-odds.

    They order windows as the probability of that label does, and still do where it rounds to 1.
    """
    others = [logit for label, logit in enumerate(logits) if label != default]
    best = max(others)
    others.remove(best)
    return best - _log_sum([*others, logits[default]])


def _log_mean(windows: Sequence[Logits]) -> list[float]:
    """Return the logarithms of the mean probabilities; none underflows."""
    totals = [_log_sum(logits) for logits in windows]
    logs = [
        [logit - total for logit in logits] for logits, total in zip(windows, totals, strict=True)
    ]
    return [_log_sum(values) - math.log(len(windows)) for values in zip(*logs, strict=True)]


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))
