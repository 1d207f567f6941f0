"""The report of a run, made of the statistics that Locust has kept."""

from collections import Counter
from collections.abc import Sequence

from locust.stats import RequestStats, StatsEntry

from nunatak_loadtest.memory import MemorySample
from nunatak_loadtest.report import LATE, LoadReport, Started, Timed, doubts_of


def build_report(
    started: Started, stats: RequestStats, details: RequestStats, samples: Sequence[MemorySample]
) -> LoadReport:
    late, total = details.get(LATE, "client"), stats.total
    overall, late_ms = _statistics(total), float(late.get_response_time_percentile(0.99))
    times = total.response_times.items()
    in_time = sum(count for ms, count in times if ms <= started.scenario.p99_ms)
    # Locust does not say how long the failed requests took, so each counts as one in time.
    codes = Counter[str]()
    for failure in stats.errors.values():
        codes[str(failure.error).removeprefix("CatchResponseError('").removesuffix("')")] += (
            failure.occurrences
        )
    return LoadReport(
        started=started,
        overall=overall,
        by_name={it.name: _statistics(it) for it in stats.entries.values() if it.num_requests},
        failure_codes=dict(codes.most_common()),
        attained_share=max(0, in_time - total.num_failures) / max(total.num_requests, 1),
        late_p99_ms=late_ms,
        server_ms={
            it.name: it.avg_response_time
            for it in details.entries.values()
            if it.method == "server" and it.num_requests
        },
        cache_hit_share=_cache_hit_share(samples),
        memory=tuple(samples),
        doubts=tuple(doubts_of(overall, late_ms)),
    )


def _statistics(entry: StatsEntry) -> Timed:
    p50, p95, p99 = (entry.get_response_time_percentile(it) for it in (0.5, 0.95, 0.99))
    return Timed(
        requests=entry.num_requests,
        failures=entry.num_failures,
        answers_per_s=entry.total_rps - entry.total_fail_per_sec,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=entry.max_response_time,
    )


def _cache_hit_share(samples: Sequence[MemorySample]) -> float | None:
    caches = [it.ledger.trunk_cache for it in samples if it.ledger is not None]
    if len(caches) < 2:
        return None
    hits = caches[-1].hits - caches[0].hits
    asked = hits + caches[-1].misses - caches[0].misses
    return hits / asked if asked else 0.0
