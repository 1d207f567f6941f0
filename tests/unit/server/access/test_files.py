import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from doubles.access import add_key
from nunatak_server.access.keys import change_keys, read_keys, stamp_of
from nunatak_server.errors import KeyFileError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_file_of_keys_is_its_owners_alone(path: Path) -> None:
    add_key(path, "one")

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_change_leaves_the_file_to_whom_it_belongs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_key(path, "one")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12_345, 12_346)
    before = path.stat()

    add_key(path, "two")

    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )

    def refuse(_descriptor: int, _user: int, _group: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(KeyFileError, match="belongs to user"):
        add_key(path, "three")
    assert path.stat().st_ino == after.st_ino
    assert os.listdir(path.parent) == ["keys.json"]  # noqa: PTH208 - names


def test_every_change_differs_from_the_state_before(path: Path) -> None:
    add_key(path, "one")
    before = stamp_of(path)

    change_keys(path, lambda keys: keys)

    assert stamp_of(path) != before


def test_a_change_that_fails_leaves_the_file_and_nothing_next_to_it(path: Path) -> None:
    add_key(path, "one")
    content = path.read_bytes()

    with pytest.raises(ZeroDivisionError):
        change_keys(path, lambda _: 1 // 0)  # pyrefly: ignore[bad-argument-type, division-by-zero] - raises
    with pytest.raises(ValueError, match="two names"):
        change_keys(path, lambda keys: (*keys, keys[0].model_copy(update={"name": "two"})))

    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["keys.json"]  # noqa: PTH208 - names


def test_changes_at_one_time_are_all_kept(path: Path) -> None:
    threads = [threading.Thread(target=add_key, args=(path, f"key-{index}")) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {key.name for key in read_keys(path)[0]} == {f"key-{index}" for index in range(16)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"keys": 1}',
        b'{"format": 2}',
        b'{"keys": [{"name": "swordfish"}]}',
        b'{"keys": [], "swordfish": 1}',
        b"\xff",
        b"\0" * 100,
    ],
)
def test_a_broken_file_is_reported_without_what_it_holds(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(KeyFileError) as caught:
        read_keys(path)

    assert str(path) in str(caught.value)
    assert "'swordfish'" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_not_trusted(path: Path, mode: int) -> None:
    add_key(path, "one")
    path.chmod(mode)

    with pytest.raises(KeyFileError, match="chmod 600"):
        read_keys(path)


def test_a_missing_file_and_a_folder_are_reported(path: Path) -> None:
    with pytest.raises(KeyFileError):
        read_keys(path.parent)
    with pytest.raises(KeyFileError, match="No such file"):
        read_keys(path)
    with pytest.raises(KeyFileError, match="No such file"):
        stamp_of(path)


def test_a_pipe_is_refused_and_keeps_nobody_waiting(path: Path) -> None:
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_keys, path)
        try:
            with pytest.raises(KeyFileError, match="not a regular file"):
                reading.result(timeout=10)
        finally:
            # A writer releases a reader that waits.
            os.close(os.open(path, os.O_RDWR))
