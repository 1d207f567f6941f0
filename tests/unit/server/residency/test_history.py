from nunatak_server.residency.history import MIN_HALF_LIFE, UseHistory


def test_a_count_halves_within_a_half_life_of_uses_of_others() -> None:
    history = UseHistory()
    for _ in range(4):
        history.record(("old", 1))
    before = history.count(("old", 1))

    for _ in range(MIN_HALF_LIFE):
        history.record(("new", 1))

    assert history.count(("old", 1)) == before / 2


def test_what_was_popular_falls_behind_what_is() -> None:
    history = UseHistory()
    for _ in range(1000):
        history.record(("old", 1))
    for _ in range(1000):
        history.record(("new", 1))

    assert history.count(("new", 1)) > 10 * history.count(("old", 1))


def test_an_unknown_version_counts_nothing() -> None:
    assert UseHistory().count(("tone", 1)) == 0


def test_the_least_used_are_forgotten_when_there_are_too_many() -> None:
    history = UseHistory(max_versions=10)
    for _ in range(5):
        history.record(("hot", 1))

    for version in range(100):
        history.record(("stream", version))

    known = [version for version in range(100) if history.count(("stream", version))]
    assert len(known) < 10
    assert history.count(("hot", 1)) > 3
