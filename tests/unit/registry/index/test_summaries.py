from pathlib import Path

import pytest

from doubles.damage import write_rows
from doubles.drafts import make_draft
from nunatak_registry.errors import InvalidManifestError
from nunatak_registry.store import Registry


def test_damaged_manifest_hides_its_task_alone(registry: Registry, folder: Path) -> None:
    registry.publish(*make_draft("bad", 1))
    registry.publish(*make_draft("good", 2))
    write_rows(folder, "UPDATE nunatak_versions SET manifest = '{}' WHERE task = 'bad'")

    assert [task.name for task in registry.tasks()] == ["good"]
    assert [(task.name, task.version) for task in registry.damaged_tasks()] == [("bad", 1)]
    with pytest.raises(InvalidManifestError):
        registry.task("bad")


def test_no_task_is_damaged_in_a_sound_registry(registry: Registry) -> None:
    registry.publish(*make_draft())

    assert registry.damaged_tasks() == []
