"""Every kind of index: what the model (`test_model.py`) does not say of tasks and versions."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from doubles.drafts import make_draft, publish_one
from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import InvalidManifestError, Registry, TaskNotFoundError, VersionNotFoundError

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_published_version_comes_back_whole(registry: Registry) -> None:
    draft, blobs = make_draft()

    manifest = registry.publish(draft, blobs)

    assert manifest == TaskManifest.model_validate({**draft.model_dump(), "version": 1})
    assert registry.resolve("intent/1") == manifest
    assert registry.read_blob(manifest) == blobs["parameters"]


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
