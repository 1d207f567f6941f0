import asyncio
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from doubles.drafts import publish_one
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import Candidate, CandidateRole, Registry, StoreUnavailableError, Traffic
from nunatak_server.catalog.catalog import NUM_LOOKS, Catalog
from nunatak_server.residency.resident_set import key_of


def publish_canary(registry: Registry, *seeds: int) -> None:
    """Let the second of two versions be the canary of the first."""
    for seed in seeds:
        publish_one(registry, seed=seed)
    registry.promote("intent", "prod", 1)
    canary = Candidate(task="intent", alias="prod", role=CandidateRole.CANARY, version=2, share=0.5)
    registry.rollouts.set(canary)


async def test_what_versions_are_known_by_is_made_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[str]()
    digest = TaskManifest.content_digest

    def noted(self: TaskManifest) -> str:
        threads.add(threading.current_thread().name.partition("_")[0])
        return digest(self)

    async def scenario(catalog: Catalog) -> None:
        reference = TaskReference(task="intent", alias="prod")
        traffic = (await catalog.traffic([reference], None))[reference]
        assert isinstance(traffic, Traffic)
        assert traffic.canary is not None
        found = [traffic.manifest, traffic.canary.manifest]
        assert [key_of(it).version for it in found] == [1, 2]

    with Registry.open(tmp_path) as registry:
        # Manifests are parsed once in a process, so no other test may have these.
        publish_canary(registry, 7001, 7002)
        monkeypatch.setattr(TaskManifest, "content_digest", noted)
        catalog = Catalog(registry)
        await scenario(catalog)
        catalog.close()

    assert threads == {"nunatak-registry"}


@contextmanager
def opened(folder: Path, *, look_up_s: float = 60) -> Generator[tuple[Catalog, threading.Event]]:
    """Yield a catalog, and an event for which its calls can wait."""
    may_end = threading.Event()
    with Registry.open(folder) as registry:
        catalog = Catalog(registry, look_up_s=look_up_s)
        try:
            yield catalog, may_end
        finally:
            may_end.set()
            catalog.close()


async def test_no_kind_of_call_waits_for_another(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, may_end):
        waiting = [
            asyncio.create_task(call)
            for call in (
                *(catalog.change(may_end.wait) for _ in range(4)),
                *(catalog.note(may_end.wait) for _ in range(4)),
                *(catalog.look_up("ann", may_end.wait) for _ in range(100)),
            )
        ]
        await asyncio.sleep(0)

        generation = await asyncio.wait_for(catalog.poll(catalog.registry.generation), 20)

        assert generation.number == 0
        assert not any(it.done() for it in waiting)
        may_end.set()
        await asyncio.gather(*waiting)


async def test_a_damaged_row_is_an_error_of_its_own_task_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, _):
        publish_canary(catalog.registry, 1, 2)
        publish_one(catalog.registry, task="tone")
        with closing(sqlite3.connect(tmp_path / "index.sqlite3")) as index:
            index.execute("UPDATE nunatak_candidates SET share = 'half'")
            index.commit()
        references = [TaskReference(task=task) for task in ("intent", "tone")]

        found = await catalog.traffic(references, None)

        assert [type(found[it]) for it in references] == [StoreUnavailableError, Traffic]
        (tmp_path / "index.sqlite3").rename(tmp_path / "away")
        with pytest.raises(StoreUnavailableError, match="missing"):
            await catalog.traffic(references, None)


async def test_references_that_are_looked_up_together_mean_versions_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = [TaskReference(task="intent"), TaskReference(task="intent", alias="prod")]
    look, moves = Registry.traffic, iter([2])

    def look_and_move(registry: Registry, reference: TaskReference) -> Traffic:
        found = look(registry, reference)
        for version in moves:
            registry.promote("intent", "prod", version)
        return found

    with opened(tmp_path) as (catalog, _):
        for seed in (1, 2):
            publish_one(catalog.registry, seed=seed)
        catalog.registry.promote("intent", "prod", 1)
        monkeypatch.setattr(Registry, "traffic", look_and_move)

        found = await catalog.traffic(references, None)

    meant = [it.manifest.version for it in found.values() if isinstance(it, Traffic)]
    assert meant == [2, 2]


async def test_the_look_ups_of_callers_take_turns(tmp_path: Path) -> None:
    order = list[str]()
    with opened(tmp_path) as (catalog, may_end):

        def look(caller: str) -> None:
            may_end.wait()
            order.append(caller)

        many = [asyncio.create_task(catalog.look_up("many", look, "many")) for _ in range(50)]
        await asyncio.sleep(0)
        one = asyncio.create_task(catalog.look_up("one", look, "one"))
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(one, *many)

    assert order.index("one") <= 2 * NUM_LOOKS


async def test_a_request_waits_for_the_registry_for_a_bounded_time_its_turn_included(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, look_up_s=0.05) as (catalog, may_end):
        calls = [catalog.look_up("ann", may_end.wait) for _ in range(2 * NUM_LOOKS)]
        found = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(it) for it in found} == {StoreUnavailableError}
