"""Every kind of index: readers that hold versions."""

from datetime import UTC, datetime

from doubles.drafts import publish_many, publish_one
from doubles.refusals import raises
from nunatak_registry import Registry

READER = "host-a:4711"
LONG_S = 3600.0
NEXT_CENTURY = datetime(2200, 1, 1, tzinfo=UTC)


def test_version_that_a_reader_holds_is_not_deleted(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.hold(READER, [("intent", 1)], seconds=LONG_S)

    with raises("version_in_use", match=f"is held by reader {READER} "):
        registry.delete("intent", 1)

    assert registry.resolve("intent/1").version == 1
    registry.delete("intent", 2)


def test_hold_is_seen_by_every_opener(registry: Registry, location: str) -> None:
    publish_one(registry)
    registry.hold(READER, [("intent", 1)], seconds=1e9)

    with Registry.open(location) as other, raises("version_in_use"):
        other.delete("intent", 1)


def test_hold_ends_by_itself(registry: Registry, location: str) -> None:
    publish_one(registry)
    registry.hold(READER, [("intent", 1)], seconds=LONG_S)

    with Registry.open(location, clock=lambda: NEXT_CENTURY) as later:
        later.delete("intent", 1)
        assert later.tasks() == []


def test_new_hold_replaces_the_old_one_of_the_same_reader_alone(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.hold(READER, [("intent", 1), ("intent", 2)], seconds=LONG_S)
    registry.hold("other", [("intent", 2)], seconds=LONG_S)

    registry.hold(READER, [], seconds=LONG_S)

    registry.delete("intent", 1)
    with raises("version_in_use", match="is held by reader other "):
        registry.delete("intent", 2)


def test_hold_of_a_missing_version_is_passed_over(registry: Registry) -> None:
    publish_one(registry)

    registry.hold(READER, [("intent", 7), ("other", 1), ("intent", 1)], seconds=LONG_S)

    with raises("version_in_use"):
        registry.delete("intent", 1)
    assert registry.verify() == []


def test_hold_is_no_change_of_what_is_served(registry: Registry) -> None:
    publish_one(registry)
    generation = registry.generation()

    registry.hold(READER, [("intent", 1)], seconds=LONG_S)

    assert registry.generation() == generation
