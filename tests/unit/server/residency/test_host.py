import pytest

from doubles.drafts import make_draft
from nunatak_contract.manifest import TaskManifest
from nunatak_registry import CorruptBlobError
from nunatak_server.residency.resident_set import HostTier

DATA = b"0123456789"


class FakeBlobs:
    """Returns ten bytes for every version, and counts the reads."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.error: Exception | None = None

    def __call__(self, manifest: TaskManifest) -> bytes:
        self.read.append(manifest.version)
        if self.error is not None:
            raise self.error
        return DATA


def version(number: int) -> TaskManifest:
    draft, _ = make_draft(seed=number)
    return TaskManifest(**draft.model_dump(), version=number)


def test_a_blob_is_read_once_while_it_is_held() -> None:
    blobs = FakeBlobs()
    tier = HostTier(blobs, budget_bytes=100)

    assert [tier.read(version(1)) for _ in range(3)] == [DATA] * 3

    assert blobs.read == [1]
    assert (tier.stats().hits, tier.stats().misses) == (2, 1)


def test_the_budget_holds_and_the_least_recently_read_goes_first() -> None:
    blobs = FakeBlobs()
    tier = HostTier(blobs, budget_bytes=20)

    for number in (1, 2, 1, 3, 1, 2):
        tier.read(version(number))

    assert blobs.read == [1, 2, 3, 2]
    assert (tier.stats().bytes, tier.stats().blobs) == (20, 2)


def test_a_budget_of_nothing_holds_nothing() -> None:
    blobs = FakeBlobs()
    tier = HostTier(blobs, budget_bytes=0)

    tier.read(version(1))
    tier.read(version(1))

    assert blobs.read == [1, 1]
    assert tier.stats().bytes == 0


def test_what_could_not_be_read_is_not_held() -> None:
    blobs = FakeBlobs()
    tier = HostTier(blobs, budget_bytes=100)
    blobs.error = CorruptBlobError("0" * 64, "is missing")
    with pytest.raises(CorruptBlobError):
        tier.read(version(1))

    blobs.error = None

    assert tier.read(version(1)) == DATA
