"""Every kind of index: beats of replicas, the wait until all follow, and readers that hold."""

import threading
from datetime import UTC, datetime

import psycopg
import pytest
from sqlalchemy import text

from doubles.drafts import publish_many, publish_one
from doubles.refusals import raises
from doubles.replicas import NEVER, SOUND, beat
from nunatak_registry import Generation, Registry
from nunatak_registry.index import index

READER = "host-a:4711"
LONG_S = 3600.0
NEXT_CENTURY = datetime(2200, 1, 1, tzinfo=UTC)


def test_a_replica_is_listed_as_it_described_itself_and_changes_no_more(registry: Registry) -> None:
    before = registry.generation()
    beat(registry)

    assert registry.generation() == before
    (found,) = registry.replicas.listing().replicas

    assert (found.id, found.address, found.release) == ("one", "one.example:8080", "0.1.0")
    assert (found.started_at, found.lease_s, found.load) == (SOUND.started, 3600, SOUND.load)
    assert found.is_current
    assert 0 <= found.seen_s < 60


def test_a_later_beat_replaces_the_row_and_counts_the_others(registry: Registry) -> None:
    assert [beat(registry), beat(registry), beat(registry, "two")] == [0, 0, 1]
    assert [it.id for it in registry.replicas.listing().replicas] == ["one", "two"]


def test_a_wait_ends_when_every_replica_has_confirmed(registry: Registry) -> None:
    old = registry.generation()
    publish_one(registry)
    late = iter(["one", "two"])
    for name in ("one", "two"):
        beat(registry, name, seen=old)

    def pause(_: float) -> None:
        beat(registry, next(late))

    found = registry.replicas.wait(60, pause=pause)

    assert [it.is_current for it in found.replicas] == [True, True]
    assert next(late, None) is None


def test_a_wait_that_ends_too_early_names_the_replicas_behind(registry: Registry) -> None:
    old = registry.generation()
    publish_one(registry)
    beat(registry, "one")
    beat(registry, "two", seen=old)

    with raises("replicas_behind", match="had not confirmed it: two;"):
        registry.replicas.wait(0)


def test_a_wait_does_not_count_rows_that_have_ended(registry: Registry) -> None:
    old = registry.generation()
    publish_one(registry)
    beat(registry, "killed", seen=old, lease_s=0.0)

    assert registry.replicas.wait(0).replicas == ()
    assert beat(registry, "alive") == 0, "the ended row is removed"


def test_a_replica_that_has_left_is_not_waited_for(registry: Registry) -> None:
    beat(registry, seen=NEVER)
    publish_one(registry)

    registry.replicas.leave("one:key")

    assert registry.replicas.wait(0).replicas == ()


def test_an_equal_number_from_before_a_restore_confirms_nothing(registry: Registry) -> None:
    publish_one(registry)
    number = registry.generation().number

    beat(registry, seen=Generation(number=number + 1, token="lost"))  # noqa: S106 - no password

    assert registry.replicas.behind(number) == ["one"]


@pytest.mark.parametrize("location", ["postgresql"], indirect=True)
def test_a_beat_waits_for_no_writer_on_postgresql(location: str, registry: Registry) -> None:
    url = location.partition("&blobs=")[0].replace("+psycopg", "")
    with psycopg.connect(url) as writer:
        writer.execute("SELECT id FROM nunatak_state FOR UPDATE")

        assert beat(registry) == 0


@pytest.mark.parametrize("location", ["postgresql"], indirect=True)
def test_a_change_is_refused_while_another_writer_is_stopped_on_postgresql(
    location: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_one(registry)
    monkeypatch.setattr(index, "_LONG_WAIT", text("SET LOCAL lock_timeout = '100ms'"))
    url = location.partition("&blobs=")[0].replace("+psycopg", "")
    with psycopg.connect(url) as writer:
        writer.execute("SELECT id FROM nunatak_state FOR UPDATE")
        # A change that waits for ever would not let this test end.
        giving_up = threading.Timer(20, writer.rollback)
        giving_up.start()
        with raises("store_unavailable", match="lock timeout"):
            registry.promote("intent", "prod", 1)
        giving_up.cancel()
    registry.promote("intent", "prod", 1)


def test_hold_ends_by_itself(registry: Registry) -> None:
    publish_one(registry)
    registry.hold(READER, [("intent", 1)], seconds=0)

    registry.delete("intent", 1)
    assert registry.tasks() == []


@pytest.mark.parametrize("location", ["postgresql"], indirect=True)
def test_no_wrong_clock_ends_or_lengthens_a_hold_on_postgresql(
    registry: Registry, location: str
) -> None:
    publish_one(registry)
    registry.hold(READER, [("intent", 1)], seconds=LONG_S)

    with Registry.open(location, clock=lambda: NEXT_CENTURY) as ahead:
        ahead.hold("other", [("intent", 1)], seconds=0)
        assert registry.readers("intent", 1) == (READER,)
        with raises("version_in_use", match=f"is held by reader {READER} "):
            ahead.delete("intent", 1)


def test_new_hold_replaces_the_old_one_of_the_same_reader_alone(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.hold(READER, [("intent", 1), ("intent", 2)], seconds=LONG_S)
    registry.hold("other", [("intent", 2)], seconds=LONG_S)

    registry.hold(READER, [], seconds=LONG_S)

    registry.delete("intent", 1)
    with raises("version_in_use", match="is held by reader other "):
        registry.delete("intent", 2)
    beat(registry, "other", key="other")
    with raises("version_in_use", match=r"is held by replica other at one\.example:8080 "):
        registry.delete("intent", 2)
