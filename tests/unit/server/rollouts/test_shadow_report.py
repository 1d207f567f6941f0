import pytest

from nunatak_server.residency.resident_set import VersionKey
from nunatak_server.rollouts.comparison import (
    DRIFT_BOUNDS,
    MAX_PAIRS,
    Comparison,
    Pair,
    Reports,
    ShadowComparison,
)


def pair(*, task: str = "tone", version: int = 2, content: str = "b") -> Pair:
    return VersionKey(task, 1, "a"), VersionKey(task, version, content)


PAIR = pair()


def test_a_report_is_the_mean_over_what_was_compared() -> None:
    reports = Reports()
    reports.add_comparisons(
        PAIR,
        [
            Comparison(agreement=1.0, drifts=(0.0, 0.1)),
            Comparison(agreement=0.5, drifts=(0.3, 0.0)),
        ],
    )
    reports.add_errors(PAIR, 3)
    reports.add_dropped(PAIR, 4)

    report = reports.report(PAIR)

    assert (report.compared, report.agreement, report.errors, report.dropped) == (2, 0.75, 3, 4)
    assert report.mean_drift == pytest.approx(0.1)
    assert report.max_drift == 0.3


@pytest.mark.parametrize(
    ("drift", "place"), [(0.0, 0), (0.0005, 1), (0.001, 1), (0.5, 7), (0.51, 8), (1.0, 8), (7.0, 9)]
)
def test_a_drift_is_counted_at_the_first_bound_that_holds_it(drift: float, place: int) -> None:
    reports = Reports()
    reports.add_comparisons(PAIR, [Comparison(agreement=1.0, drifts=(drift,))])

    counts = reports.report(PAIR).drift_counts

    assert len(counts) == len(DRIFT_BOUNDS) + 1
    assert [index for index, count in enumerate(counts) if count] == [place]


def test_another_version_has_a_report_of_its_own() -> None:
    reports = Reports()
    reports.add_errors(PAIR, 1)

    assert reports.report(pair(version=3)) == ShadowComparison()
    assert reports.report(pair(content="c")) == ShadowComparison()


def test_reports_are_bounded_and_the_oldest_goes_first() -> None:
    reports = Reports()
    for number in range(MAX_PAIRS + 1):
        reports.add_errors(pair(task=f"task-{number}"), 1)

    assert reports.report(pair(task="task-0")) == ShadowComparison()
    assert reports.report(pair(task="task-1")).errors == 1
