"""The list of tasks, and its reads of the versions in memory."""

from collections import Counter
from collections.abc import Sequence

import pytest

from doubles.backbones import tiny_backbone
from doubles.drafts import make_draft
from doubles.watching import watched
from nunatak_contract.manifest import TaskManifest
from nunatak_model import embedding_branch
from nunatak_registry import ListedTask
from nunatak_server.http.replies import summaries_of
from nunatak_versions import LoadedTask

BRANCH = embedding_branch(tiny_backbone(num_layers=1))
VERSIONS = (1, 2)


def manifest_of(task: str, version: int) -> TaskManifest:
    return TaskManifest(**make_draft(task)[0].model_dump(), version=version)


def summary_of(task: str) -> ListedTask:
    manifest = manifest_of(task, VERSIONS[-1])
    return ListedTask(name=task, versions=VERSIONS, aliases={}, manifest=manifest)


def loaded(task: str, versions: Sequence[int] = VERSIONS) -> list[LoadedTask]:
    return [
        LoadedTask(manifest=manifest_of(task, version), branch=BRANCH, num_bytes=0)
        for version in versions
    ]


def test_each_task_is_listed_with_its_own_versions_in_memory() -> None:
    summaries = [summary_of(name) for name in "abc"]

    listed = summaries_of(summaries, [*loaded("a"), *loaded("c", [2]), *loaded("d")])

    assert [it["name"] for it in listed] == ["a", "b", "c"]
    assert [list(it["resident_versions"]) for it in listed] == [[1, 2], [], [2]]


@pytest.mark.parametrize("num_tasks", [0, 1, 50])
def test_a_version_in_memory_is_looked_at_once_however_many_tasks_are_listed(
    num_tasks: int,
) -> None:
    looks = Counter[str]()
    resident = [watched(it, looks) for name in "abc" for it in loaded(name)]
    looks.clear()

    summaries_of([summary_of(f"task-{number}") for number in range(num_tasks)], resident)

    assert looks["manifest"] == len(resident)
    assert looks.keys() == {"manifest"}
