from pathlib import Path

import pytest

from doubles.damage import blob_paths
from doubles.drafts import draft_with, make_draft
from nunatak_contract.manifest import TaskDraft
from nunatak_registry.blobs.blobs import MAX_BLOB_BYTES
from nunatak_registry.errors import InvalidArtifactError, InvalidManifestError
from nunatak_registry.store import Registry

DRAFT, BLOBS = make_draft()
DATA = BLOBS["parameters"]
PICKLE = b"\x80\x04\x95" + bytes(64)
HUGE = DRAFT.blobs[0].model_copy(update={"size_bytes": MAX_BLOB_BYTES + 1})
REFUSED: dict[str, tuple[TaskDraft, dict[str, bytes], type[Exception], str]] = {
    "no role": (DRAFT, {}, InvalidManifestError, "describes blobs"),
    "a role more": (DRAFT, {**BLOBS, "more": DATA}, InvalidManifestError, "describes blobs"),
    "another role": (DRAFT, {"more": DATA}, InvalidManifestError, "describes blobs"),
    "a role twice": (
        DRAFT.model_copy(update={"blobs": DRAFT.blobs * 2}),
        BLOBS,
        InvalidManifestError,
        "describes blobs",
    ),
    "another size": (DRAFT, {"parameters": DATA + b"x"}, InvalidManifestError, "bytes, got"),
    "beyond the cap": (
        DRAFT.model_copy(update={"blobs": (HUGE,)}),
        BLOBS,
        InvalidArtifactError,
        "at most",
    ),
    "other bytes": (DRAFT, make_draft(seed=1)[1], InvalidManifestError, "SHA-256"),
    "no safetensors": (
        draft_with(parameters=PICKLE),
        {"parameters": PICKLE},
        InvalidArtifactError,
        "the header must be",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bytes_that_are_not_those_of_the_draft_are_refused_and_not_stored(
    registry: Registry, folder: Path, case: str
) -> None:
    draft, blobs, error, words = REFUSED[case]

    with pytest.raises(error, match=words):
        registry.publish(draft, blobs)

    assert blob_paths(folder) == []
    assert registry.tasks() == []
