"""Every kind of index: the laws while threads race."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from doubles.drafts import publish_one
from nunatak_contract.errors import NunatakError
from nunatak_registry import Registry, StoreUnavailableError


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
