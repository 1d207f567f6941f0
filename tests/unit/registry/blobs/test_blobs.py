import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from nunatak_registry.blobs.blobs import BlobStore, FileKind, StoredFile, blob_key, digest_of, fits
from nunatak_registry.blobs.files import LocalFiles
from nunatak_registry.errors import CorruptBlobError, StoreUnavailableError

DATA = b"sixteen bytes !!"
DIGEST = digest_of(DATA)
KEY = f"sha256/{DIGEST[:2]}/{DIGEST}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def digests(store: BlobStore) -> list[str]:
    return [file.digest for file in store.files() if file.kind is FileKind.BLOB]


@pytest.fixture(params=["path", "file-url", "memory-url"])
def store(request: pytest.FixtureRequest, root: Path) -> BlobStore:
    urls = {
        "path": str(root),
        "file-url": root.as_uri(),
        "memory-url": f"memory://{uuid4().hex}/blobs",
    }
    return BlobStore.open(urls[str(request.param)])


def test_put_of_equal_bytes_changes_nothing(store: BlobStore) -> None:
    assert store.put(DATA) == store.put(DATA) == DIGEST

    assert digests(store) == [DIGEST]
    assert store.get(DIGEST, len(DATA)) == DATA


@pytest.mark.parametrize(
    ("size", "words"),
    [(it, f"must have {it} bytes") for it in (len(DATA) - 1, len(DATA) + 1)] + [(2**62, "at most")],
)
def test_blob_of_another_size_or_beyond_the_cap_is_corrupt(
    store: BlobStore, size: int, words: str
) -> None:
    store.put(DATA)

    with pytest.raises(CorruptBlobError, match=words):
        store.get(DIGEST, size)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", DIGEST.upper(), DIGEST + "\n", "a/b"])
def test_no_path_is_made_from_what_is_no_digest(store: BlobStore, digest: str) -> None:
    with pytest.raises(CorruptBlobError):
        store.exists(digest)
    with pytest.raises(CorruptBlobError):
        store.quarantine(blob_key(digest))
    with pytest.raises(CorruptBlobError):
        store.get(digest, 1)


def test_deleted_blob_is_gone_and_may_be_deleted_again(store: BlobStore) -> None:
    store.put(DATA)
    assert store.exists(DIGEST)

    store.remove(StoredFile.at(KEY))
    store.remove(StoredFile.at(KEY))

    assert not store.exists(DIGEST)
    assert digests(store) == []
    with pytest.raises(CorruptBlobError, match="missing"):
        store.get(DIGEST, len(DATA))


def test_folder_names_that_look_like_urls_stay_folders(tmp_path: Path) -> None:
    store = BlobStore.open(str(tmp_path / "simplecache::memory:"))
    store.put(DATA)

    assert (tmp_path / "simplecache::memory:" / KEY).is_file()


def test_blob_is_readable_by_all_and_writable_by_none(root: Path) -> None:
    BlobStore.open(str(root)).put(DATA)

    assert stat.S_IMODE((root / KEY).stat().st_mode) == 0o444


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": lambda _: None,
    "cut short": lambda it: it.write_bytes(DATA[:-1]),
    "longer": lambda it: it.write_bytes(DATA + b"x"),
    "another bit": lambda it: it.write_bytes(bytes([DATA[0] ^ 1]) + DATA[1:]),
    "empty": lambda it: it.touch(),
    "link to equal bytes": lambda it: it.symlink_to(it.parents[2] / "equal"),
    "link to itself": lambda it: it.symlink_to(it),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "file for its folder": lambda it: (it.parent.rmdir(), it.parent.touch()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_blob_is_corrupt_and_never_returned(
    root: Path, damage: Callable[[Path], object]
) -> None:
    store = BlobStore.open(str(root))
    store.put(DATA)
    assert store.get(DIGEST, len(DATA)) == DATA
    (root / "equal").write_bytes(DATA)
    (root / KEY).unlink()
    damage(root / KEY)

    with pytest.raises(CorruptBlobError) as caught:
        store.get(DIGEST, len(DATA))

    assert caught.value.fields["digest"] == DIGEST


def test_failed_write_is_unavailable_and_leaves_nothing(root: Path) -> None:
    (root / "sha256" / DIGEST[:2]).mkdir(parents=True)
    (root / KEY).mkdir()

    with pytest.raises(StoreUnavailableError, match=f"cannot write the blob {KEY}: "):
        BlobStore.open(str(root)).put(DATA)

    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_room_for_a_blob_is_looked_for_and_nothing_is_left(root: Path) -> None:
    store = BlobStore.open(str(root))

    store.check_writable(1 << 20)
    with pytest.raises(StoreUnavailableError, match="cannot write 1,152,921,504,606,846,976 bytes"):
        store.check_writable(1 << 60)

    assert not list(root.parent.iterdir())


@pytest.mark.parametrize("url", ["nosuchprotocol://bucket/key", "nosuchprotocol://user:hush@host"])
def test_unknown_protocol_is_unavailable_and_its_url_is_not_quoted(url: str) -> None:
    with pytest.raises(StoreUnavailableError, match="nosuchprotocol") as caught:
        BlobStore.open(url)

    assert "hush" not in str(caught.value)


def test_concurrent_puts_of_equal_bytes_all_succeed(root: Path) -> None:
    store = BlobStore.open(str(root))
    start, data = threading.Barrier(8), os.urandom(2**22)
    digests: list[str] = []

    def put() -> None:
        start.wait()
        digests.append(store.put(data))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert digests == [digest_of(data)] * 8
    assert store.get(digest_of(data), len(data)) == data
    assert [path.name for path in root.rglob("*") if path.is_file()] == [digest_of(data)]


def test_read_takes_no_more_than_the_limit(root: Path) -> None:
    files = LocalFiles(root)
    files.write("a/b", DATA)

    assert files.read("a/b", 4) == DATA[:4]


@pytest.mark.parametrize("num_bytes", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_a_check_pauses_after_each_megabyte(num_bytes: int) -> None:
    data, pauses = os.urandom(num_bytes), list[None]()

    assert fits(data, digest_of(data), pause=lambda: pauses.append(None))

    assert len(pauses) == -(-num_bytes // 2**20)


@pytest.mark.parametrize("at", [0, 2**20 - 1, 2**20, 2**20 + 8])
def test_one_changed_bit_is_found(at: int) -> None:
    data = os.urandom(2**20 + 9)
    damaged = bytearray(data)
    damaged[at] ^= 1

    assert fits(data, digest_of(data))
    assert not fits(bytes(damaged), digest_of(data))
    assert not fits(b"", digest_of(data))
