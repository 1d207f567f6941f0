"""Every kind of index: promotion and rollback."""

import getpass

import pytest

from doubles.drafts import publish_many, publish_one
from doubles.refusals import raises
from nunatak_contract.errors import InvalidNameError
from nunatak_registry import AliasEventKind, Registry, VersionNotFoundError


def test_promotion_is_recorded(registry: Registry) -> None:
    publish_many(registry, 2)

    first = registry.promote("intent", "prod", 1)
    second = registry.promote("intent", "prod", 2)

    assert (first.kind, first.from_version, first.to_version) == (AliasEventKind.PROMOTE, None, 1)
    assert (second.from_version, second.to_version) == (1, 2)
    assert second.at > first.at
    assert registry.history("intent", "prod") == [first, second]


def test_every_move_says_by_whom(registry: Registry) -> None:
    publish_many(registry, 2)

    registry.promote("intent", "prod", 1)
    registry.promote("intent", "prod", 2, by="key ops")
    registry.rollback("intent", "prod", by="key night")

    found = [event.by for event in registry.history("intent", "prod")]
    assert found == [getpass.getuser(), "key ops", "key night"]
    for name in ("", "x" * 201, "two\nlines"):
        with pytest.raises(InvalidNameError):
            registry.promote("intent", "prod", 2, by=name)
    assert registry.resolve("intent").version == 1


def test_promotion_to_where_the_alias_points_changes_nothing(registry: Registry) -> None:
    publish_one(registry)
    first = registry.promote("intent", "prod", 1)
    generation = registry.generation()

    assert registry.promote("intent", "prod", 1, expected_version=1) == first
    assert registry.history("intent", "prod") == [first]
    assert registry.generation() == generation


@pytest.mark.parametrize("version", [0, -1, 2, 2**31, 2**70])
def test_promotion_to_a_missing_version_is_refused(registry: Registry, version: int) -> None:
    publish_one(registry)

    with pytest.raises(VersionNotFoundError):
        registry.promote("intent", "prod", version)
    with raises("alias_not_found"):
        registry.history("intent", "prod")


def test_stale_expectation_moves_nothing(registry: Registry) -> None:
    publish_many(registry, 3)
    registry.promote("intent", "prod", 1, expected_version=0)
    registry.promote("intent", "prod", 2, expected_version=1)

    for expected in (0, 1, 3):
        with raises("alias_conflict") as caught:
            registry.promote("intent", "prod", 3, expected_version=expected)
        then = f"version {expected}" if expected else "no version"
        assert caught.value.fields["expected"] == then
        assert caught.value.fields["actual"] == "version 2"
        with raises("alias_conflict"):
            registry.rollback("intent", "prod", expected_version=expected)

    assert registry.resolve("intent").version == 2


def test_expectation_of_a_version_fails_for_a_new_alias(registry: Registry) -> None:
    publish_one(registry)

    with raises("alias_conflict", match="points to no version"):
        registry.promote("intent", "prod", 1, expected_version=1)


def test_rollbacks_walk_back_and_promotions_push_again(registry: Registry) -> None:
    publish_many(registry, 4)
    for version in (1, 2, 3):
        registry.promote("intent", "prod", version)

    event = registry.rollback("intent", "prod", expected_version=3)
    assert (event.kind, event.from_version, event.to_version) == (AliasEventKind.ROLLBACK, 3, 2)
    assert registry.rollback("intent", "prod").to_version == 1
    with raises("no_previous_version"):
        registry.rollback("intent", "prod")

    registry.promote("intent", "prod", 4)
    assert registry.rollback("intent", "prod").to_version == 1
    assert registry.resolve("intent").version == 1


def test_rollback_with_every_earlier_version_deleted_is_refused(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.promote("intent", "prod", 1)
    registry.promote("intent", "prod", 2)
    registry.delete("intent", 1)

    with raises("no_previous_version"):
        registry.rollback("intent", "prod")
    assert registry.resolve("intent").version == 2


def test_aliases_have_histories_of_their_own(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.promote("intent", "prod", 1)
    registry.promote("intent", "canary", 2)

    with raises("no_previous_version"):
        registry.rollback("intent", "canary")
    with raises("alias_not_found"):
        registry.rollback("intent", "shadow")
    assert len(registry.history("intent", "prod")) == 1
