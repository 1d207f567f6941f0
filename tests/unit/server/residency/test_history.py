from nunatak_server.residency.resident_set import MIN_HALF_LIFE, UseHistory, VersionKey


def key(task: str, version: int = 1) -> VersionKey:
    return VersionKey(task, version, "")


def test_a_count_halves_within_a_half_life_of_uses_of_others() -> None:
    history = UseHistory()
    for _ in range(4):
        history.record(key("old"))
    before = history.count(key("old"))

    for _ in range(MIN_HALF_LIFE):
        history.record(key("new"))

    assert history.count(key("old")) == before / 2


def test_what_was_popular_falls_behind_what_is() -> None:
    history = UseHistory()
    for _ in range(1000):
        history.record(key("old"))
    for _ in range(1000):
        history.record(key("new"))

    assert history.count(key("new")) > 10 * history.count(key("old"))


def test_an_unknown_version_counts_nothing() -> None:
    assert UseHistory().count(key("tone")) == 0


def test_the_least_used_are_forgotten_when_there_are_too_many() -> None:
    history = UseHistory(max_versions=10)
    for _ in range(5):
        history.record(key("hot"))

    for version in range(100):
        history.record(key("stream", version))

    known = [version for version in range(100) if history.count(key("stream", version))]
    assert len(known) < 10
    assert history.count(key("hot")) > 3
