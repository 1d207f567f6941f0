import threading
from pathlib import Path

import pytest

from doubles.drafts import publish_one
from nunatak_contract.manifest import TaskManifest
from nunatak_contract.names import TaskReference
from nunatak_registry import Candidate, CandidateRole, Registry, Traffic
from nunatak_server.catalog import Catalog
from nunatak_server.residency.resident_set import key_of


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
        traffic = (await catalog.traffic([reference]))[reference]
        assert isinstance(traffic, Traffic)
        assert traffic.canary is not None
        found = [traffic.manifest, traffic.canary.manifest]
        assert [key_of(it).version for it in found] == [1, 2]

    with Registry.open(tmp_path) as registry:
        for seed in (1, 2):
            publish_one(registry, seed=seed)
        registry.promote("intent", "prod", 1)
        canary = Candidate(
            task="intent", alias="prod", role=CandidateRole.CANARY, version=2, share=0.5
        )
        registry.rollouts.set(canary)
        monkeypatch.setattr(TaskManifest, "content_digest", noted)
        catalog = Catalog(registry)
        await scenario(catalog)
        catalog.close()

    assert threads == {"nunatak-registry"}
