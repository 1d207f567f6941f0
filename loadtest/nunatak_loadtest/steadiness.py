"""When a server has warmed up."""

from collections.abc import Sequence

WINDOWS = 3


def is_steady(medians: Sequence[float | None], *, tolerance: float) -> bool:
    """Whether the last three windows agree: the highest median is within `tolerance` of the lowest.

    A window without answers has no median, and agrees with none.
    """
    last = [median for median in medians[-WINDOWS:] if median is not None]
    return len(last) == WINDOWS and max(last) <= (1 + tolerance) * min(last)
