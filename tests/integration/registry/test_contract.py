"""Every kind of index: publish, resolve, list, delete."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from doubles.drafts import make_draft, publish_many, publish_one
from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import InvalidManifestError, Registry, TaskNotFoundError, VersionNotFoundError

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_published_version_comes_back_whole(registry: Registry) -> None:
    draft, blobs = make_draft()

    manifest = registry.publish(draft, blobs)

    assert manifest == TaskManifest.model_validate({**draft.model_dump(), "version": 1})
    assert registry.resolve("intent/1") == manifest
    assert registry.read_blob(manifest) == blobs["parameters"]


def test_versions_count_up_per_task(registry: Registry) -> None:
    assert [publish_one(registry, "a", seed).version for seed in range(3)] == [1, 2, 3]
    assert publish_one(registry, "b").version == 1


def test_publishing_equal_content_again_returns_the_version_there_is(registry: Registry) -> None:
    draft, blobs = make_draft()
    first = registry.publish(draft, blobs)
    publish_one(registry, seed=1)
    generation = registry.generation()

    later = draft.model_copy(update={"created_at": START + timedelta(days=1)})

    assert registry.publish(later, blobs) == first
    assert registry.publish(first, blobs) == first
    assert registry.generation() == generation


def test_bare_name_means_the_newest_version_while_there_is_no_prod(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.promote("intent", "canary", 1)

    assert registry.resolve("intent").version == 2


def test_bare_name_means_prod_once_there_is_one(registry: Registry) -> None:
    publish_many(registry, 3)
    registry.promote("intent", "prod", 2)

    assert registry.resolve("intent").version == 2
    assert registry.resolve("intent@prod").version == 2
    assert registry.resolve(TaskReference(task="intent", version=3)).version == 3
    assert registry.task("intent").manifest.version == 2


def test_each_missing_thing_has_its_own_error(registry: Registry) -> None:
    publish_one(registry)

    with pytest.raises(TaskNotFoundError):
        registry.resolve("other")
    with pytest.raises(TaskNotFoundError):
        registry.resolve("other/1")
    with pytest.raises(TaskNotFoundError):
        registry.resolve("other@prod")
    with raises("alias_not_found"):
        registry.resolve("intent@prod")
    with pytest.raises(VersionNotFoundError, match=r"versions: 1$"):
        registry.resolve("intent/2")


def test_unknown_task_is_not_found_by_any_method(registry: Registry) -> None:
    publish_one(registry)
    calls: tuple[Callable[[], object], ...] = (
        lambda: registry.task("other"),
        lambda: registry.versions("other"),
        lambda: registry.promote("other", "prod", 1),
        lambda: registry.rollback("other", "prod"),
        lambda: registry.history("other", "prod"),
        lambda: registry.delete("other", 1),
        lambda: registry.verify("other"),
    )

    for call in calls:
        with pytest.raises(TaskNotFoundError):
            call()


def test_summary_has_versions_aliases_and_default(registry: Registry) -> None:
    publish_many(registry, 2)
    publish_one(registry, "a")
    registry.promote("intent", "prod", 1)
    registry.promote("intent", "canary", 2)

    alpha, intent = registry.tasks()

    assert (alpha.name, alpha.versions, alpha.latest, alpha.aliases) == ("a", (1,), 1, {})
    assert (intent.name, intent.versions, intent.latest) == ("intent", (1, 2), 2)
    assert intent.aliases == {"canary": 2, "prod": 1}
    assert intent.manifest == registry.resolve("intent")
    assert registry.task("intent") == intent


def test_version_that_an_alias_points_to_is_not_deleted(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.promote("intent", "canary", 1)
    registry.promote("intent", "prod", 1)

    with raises("version_in_use") as caught:
        registry.delete("intent", 1)

    assert re.findall(r"alias (\w+)", str(caught.value)) == ["canary", "prod"]
    assert registry.verify() == []
    assert registry.resolve("intent/1").version == 1


def test_deleted_number_is_never_given_out_again(registry: Registry) -> None:
    publish_many(registry, 2)
    registry.delete("intent", 2)
    registry.delete("intent", 1)

    with pytest.raises(TaskNotFoundError):
        registry.resolve("intent")
    assert registry.tasks() == []
    assert publish_one(registry, seed=1).version == 3
    assert registry.task("intent").versions == (3,)


def test_collection_removes_the_blob_with_its_last_reference(registry: Registry) -> None:
    one = publish_one(registry, "a", seed=7)
    two = publish_one(registry, "b", seed=7)
    assert one.blobs == two.blobs

    registry.delete("a", 1)
    assert registry.gc(grace_s=0).removed_blobs == ()
    assert registry.read_blob(two)
    assert registry.verify() == []

    registry.delete("b", 1)
    assert registry.gc(grace_s=0).removed_blobs == (two.blobs[0].sha256,)
    with pytest.raises(NunatakError):
        registry.read_blob(two)
    assert registry.verify() == []


def test_generation_rises_with_every_change_and_is_seen_by_others(
    registry: Registry, location: str
) -> None:
    seen: list[int] = []
    with Registry.open(location) as observer:
        for change in (
            lambda: publish_one(registry),
            lambda: publish_one(registry, seed=1),
            lambda: registry.promote("intent", "prod", 1),
            lambda: registry.promote("intent", "prod", 2),
            lambda: registry.rollback("intent", "prod"),
            lambda: registry.delete("intent", 2),
        ):
            change()
            seen.append(observer.generation().number)

    assert seen == sorted(set(seen))


def test_reading_does_not_raise_the_generation(registry: Registry) -> None:
    publish_one(registry)
    generation = registry.generation()

    registry.tasks()
    registry.resolve("intent")
    registry.verify()

    assert registry.generation() == generation


def test_draft_with_a_hostile_name_stores_nothing(registry: Registry) -> None:
    draft, blobs = make_draft()

    with pytest.raises(InvalidManifestError):
        registry.publish(draft.model_copy(update={"task": "../intent"}), blobs)

    assert registry.tasks() == []
    assert registry.verify() == []
