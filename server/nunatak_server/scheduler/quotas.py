"""Quotas: the most requests and tokens of one caller in one minute or one day of UTC.

A request is refused once a quota is spent. The request that spends the rest of a quota is answered
whole, and so are the requests in progress: no stream of verdicts stays unjudged from some place on.
Each process counts for itself.
"""

import time
from collections.abc import Callable, Mapping, MutableMapping
from enum import StrEnum
from math import ceil
from typing import Final

from cachetools import LRUCache

from nunatak_contract.errors import NunatakError


class Quota(StrEnum):
    REQUESTS_PER_MINUTE = "requests_per_minute"
    REQUESTS_PER_DAY = "requests_per_day"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"


Limits = Mapping[Quota, int]
MAX_CALLERS: Final = 100_000
"""Callers with counts. Only more callers than this make the process forget a count."""
_PERIODS_S: Final = {"minute": 60, "day": 86_400}
_Count = tuple[int, float]  # the number of a period, and the amount in this period


class Quotas:
    """Counts requests and tokens of callers; belongs to the event loop thread."""

    def __init__(self, default: Limits, *, now: Callable[[], float] = time.time) -> None:
        """`default` holds the limits of callers without an own limit for a quota."""
        self._default = default
        self._now = now
        self._counts: MutableMapping[str, dict[Quota, _Count]] = LRUCache(MAX_CALLERS)

    def count_request(self, caller: str, limits: Limits) -> None:
        """Count one request of a caller, or refuse it and do not count it."""
        limits = {**self._default, **limits}
        now, known = self._now(), self._counts.pop(caller, {})
        if not limits:
            return
        counts = {quota: _count_at(now, quota, known.get(quota)) for quota in limits}
        self._counts[caller] = counts
        spent = [quota for quota, limit in limits.items() if counts[quota][1] >= limit]
        if spent:
            end, last = max(((counts[it][0] + 1) * _period_s(it), it) for it in spent)
            resource, _, period = last.split("_")
            most, wait_s = limits[last], ceil(end - now)
            raise NunatakError(
                "quota_exceeded", resource=resource, limit=most, period=period, retry_after_s=wait_s
            )
        self._add(caller, "requests", 1)

    def count_tokens(self, caller: str, num_tokens: float) -> None:
        self._add(caller, "tokens", num_tokens)

    def _add(self, caller: str, resource: str, amount: float) -> None:
        counts = self._counts.get(caller, {})
        for quota, known in counts.items():
            if quota.startswith(resource):
                period, before = _count_at(self._now(), quota, known)
                counts[quota] = period, before + amount


def _period_s(quota: Quota) -> int:
    return _PERIODS_S[quota.rpartition("_")[2]]


def _count_at(now: float, quota: Quota, known: _Count | None) -> _Count:
    """Return the count of the running period; a clock that goes back frees nothing."""
    period = int(now // _period_s(quota))
    return known if known is not None and known[0] >= period else (period, 0.0)
