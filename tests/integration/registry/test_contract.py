"""Every kind of index: what the model (`test_model.py`) does not say of tasks and versions."""

from collections.abc import Callable

import pytest

from doubles.drafts import make_draft, publish_one
from doubles.refusals import raises
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import Registry, TaskNotFoundError, VersionNotFoundError


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
