from pathlib import Path

import pytest

from doubles.damage import blob_paths
from doubles.drafts import draft_with, make_draft
from nunatak_registry.blobs.blobs import MAX_BLOB_BYTES
from nunatak_registry.errors import InvalidArtifactError, InvalidManifestError
from nunatak_registry.store import Registry


@pytest.mark.parametrize("names", [(), ("parameters", "more"), ("more",)])
def test_bytes_must_have_the_roles_of_the_draft(
    registry: Registry, folder: Path, names: tuple[str, ...]
) -> None:
    draft, blobs = make_draft()

    with pytest.raises(InvalidManifestError, match="describes blobs"):
        registry.publish(draft, dict.fromkeys(names, blobs["parameters"]))

    assert blob_paths(folder) == []


def test_a_role_given_twice_is_refused(registry: Registry) -> None:
    draft, blobs = make_draft()
    twice = draft.model_copy(update={"blobs": draft.blobs * 2})

    with pytest.raises(InvalidManifestError, match="describes blobs"):
        registry.publish(twice, blobs)


def test_bytes_of_another_size_are_refused(registry: Registry, folder: Path) -> None:
    draft, blobs = make_draft()

    with pytest.raises(InvalidManifestError, match="bytes, got"):
        registry.publish(draft, {"parameters": blobs["parameters"] + b"x"})

    assert blob_paths(folder) == []


def test_a_blob_beyond_the_cap_is_refused_unread(registry: Registry) -> None:
    draft, blobs = make_draft()
    (record,) = draft.blobs
    huge = draft.model_copy(
        update={"blobs": (record.model_copy(update={"size_bytes": MAX_BLOB_BYTES + 1}),)}
    )

    with pytest.raises(InvalidArtifactError, match="at most"):
        registry.publish(huge, blobs)


def test_other_bytes_of_the_same_size_are_refused(registry: Registry, folder: Path) -> None:
    draft, _ = make_draft(seed=0)
    _, others = make_draft(seed=1)

    with pytest.raises(InvalidManifestError, match="SHA-256"):
        registry.publish(draft, others)

    assert blob_paths(folder) == []


def test_bytes_that_are_no_safetensors_are_refused(registry: Registry, folder: Path) -> None:
    pickle = b"\x80\x04\x95" + bytes(64)

    with pytest.raises(InvalidArtifactError):
        registry.publish(draft_with(parameters=pickle), {"parameters": pickle})

    assert blob_paths(folder) == []
    assert registry.tasks() == []
