"""Every kind of index: what the model (`test_model.py`) does not say, and threads that race."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from doubles.drafts import make_draft, publish_one
from doubles.refusals import raises
from nunatak_contract.errors import NunatakError
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import (
    Registry,
    StoreUnavailableError,
    TaskNotFoundError,
    VersionNotFoundError,
)


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
        lambda: registry.copies.take("other", registry.copies),
    )

    for call in calls:
        with pytest.raises(TaskNotFoundError):
            call()


def test_racing_publishers_of_equal_content_get_one_version(registry: Registry) -> None:
    start = threading.Barrier(4)

    def race(_: int) -> int:
        start.wait()
        return publish_one(registry).version

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(race, range(4))) == {1}
    assert registry.task("intent").versions == (1,)


def test_of_a_racing_hold_and_deletion_exactly_one_wins(registry: Registry) -> None:
    for number in range(1, 13):
        publish_one(registry, seed=number)
        start = threading.Barrier(2)

        def hold(number: int = number, start: threading.Barrier = start) -> bool:
            start.wait()
            # A hold waits for the lock of a slow deletion, but not for long.
            with contextlib.suppress(StoreUnavailableError):
                return bool(registry.hold("reader", [("intent", number)], seconds=1e6))
            return False

        def delete(number: int = number, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                registry.delete("intent", number)
            except NunatakError as error:
                if error.code != "version_in_use":
                    raise
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            is_held, is_deleted = pool.submit(hold), pool.submit(delete)
            assert is_held.result() != is_deleted.result()


def test_racing_openers_of_a_new_registry_all_succeed(location: str) -> None:
    start = threading.Barrier(4)

    def open_and_publish(seed: int) -> int:
        start.wait()
        with Registry.open(location) as registry:
            return publish_one(registry, seed=seed).version

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(open_and_publish, range(4))) == [1, 2, 3, 4]


def test_publish_delete_and_collection_of_a_shared_blob_never_leave_a_version_without_it(
    registry: Registry,
) -> None:
    publish_one(registry, "keeper", seed=1)

    def publish(task: str) -> int:
        while True:
            # Without a grace period the collector may take a file that is being written.
            with contextlib.suppress(StoreUnavailableError):
                return publish_one(registry, task, seed=0).version

    def publish_and_delete(task: str) -> None:
        for _ in range(8):
            registry.delete(task, publish(task))
            registry.gc(grace_s=0)
        publish(task)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(publish_and_delete, ["a", "b", "c"]))

    assert registry.verify() == []
    assert [summary.versions for summary in registry.tasks()] == [(9,), (9,), (9,), (1,)]
