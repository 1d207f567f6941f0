"""The settings that a server refuses at its start, and the moment of its first request."""

import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from doubles.backbones import tiny_backbone
from doubles.refusals import raises
from doubles.serving import make_settings
from nunatak_server.engine.backbones import Backbones
from nunatak_server.processes import serving
from nunatak_server.processes.serving import (
    MAX_BACKLOG,
    MAX_CONNECTIONS,
    MAX_OBJECTS,
    MIN_FILES,
    MIN_OBJECTS,
    OBJECTS_PER_REQUEST,
    RESERVED_FILES,
    begin,
    connection_limits,
    serve,
)
from nunatak_server.processes.supervisor import PLACE_VARIABLE, SIGNALS, ReplicaPlace
from nunatak_server.processes.template import LISTED_S, check_single, divided, settings_of
from nunatak_server.settings import ServerSettings

NUM = 4


@pytest.fixture(autouse=True)
def collector() -> Generator[None]:
    """Restore the collector, and the turns of threads."""
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*before)
    sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("max_requests", "num_objects"),
    [(1, MIN_OBJECTS), (1024, 1024 * OBJECTS_PER_REQUEST), (2**31, MAX_OBJECTS)],
)
def test_collections_begin_beyond_what_a_full_queue_explains_before_the_address_is_announced(
    max_requests: int, num_objects: int
) -> None:
    frozen, loaded, found = gc.get_freeze_count(), [list[object]()], list[object]()

    def announce(address: str) -> None:
        found.extend((address, gc.get_threshold()[0], sys.getswitchinterval()))
        found.append(gc.get_freeze_count() > frozen)

    begin("http://127.0.0.1:1", max_requests=max_requests, announce=announce)

    assert found == ["http://127.0.0.1:1", num_objects, 0.0005, True], loaded


def test_settings_that_do_not_fit_the_backbone_are_refused_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backbone = tiny_backbone(num_layers=1)

    def load(_: ServerSettings) -> Backbones:
        return Backbones(backbone)

    monkeypatch.setattr(serving, "load_on_own_thread", load)

    with raises("invalid_settings", match="max_batch_tokens"):
        serve(make_settings(registry=str(tmp_path), max_batch_tokens=1), create_registry=True)


def test_a_server_makes_no_registry_from_a_typing_error(tmp_path: Path) -> None:
    with raises("registry_missing"):
        serve(make_settings(registry=str(tmp_path / "tpyo")))

    assert list(tmp_path.iterdir()) == []


def refuses(folder: Path, said: str, *, code: str = "invalid_settings", **settings: object) -> bool:
    """Whether a server refuses settings before it makes its registry."""
    with raises(code, match=said):
        serve(make_settings(registry=str(folder / "none"), **settings), create_registry=True)
    return not (folder / "none").exists()


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refuses(tmp_path, f"port {port} .*already in use.*--port", port=port)


def test_an_address_of_another_machine_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    said = r"192\.0\.2\.1 .*change --host"

    assert refuses(tmp_path, said, host="192.0.2.1", insecure_open=True)


def test_a_bad_file_of_keys_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text("{")

    assert refuses(tmp_path, r"keys\.json", code="invalid_key_file", api_keys_file=keys)


class FileLimits:
    """The limits of open files of a process; a change is only noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *first: int) -> None:
        self.seen = [first]
        monkeypatch.setattr(resource, "getrlimit", self.get)
        monkeypatch.setattr(resource, "setrlimit", self.set)

    def get(self, _: int) -> tuple[int, ...]:
        return self.seen[-1]

    def set(self, _: int, limits: tuple[int, int]) -> None:
        self.seen.append(limits)


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 1024, None),
        (256, 4096, 4096),
        (1024, 2**20, RESERVED_FILES + MAX_CONNECTIONS + MAX_BACKLOG),
        (2**20, 2**20, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (256, resource.RLIM_INFINITY, RESERVED_FILES + MAX_CONNECTIONS + MAX_BACKLOG),
    ],
)
def test_all_connections_that_may_open_at_once_leave_files_for_the_server(
    soft: int, hard: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = FileLimits(monkeypatch, soft, hard)

    connections, backlog = connection_limits()

    assert limits.seen[1:] == ([] if raised is None else [(raised, hard)])
    allowed = limits.seen[-1][0]
    files = allowed if allowed != resource.RLIM_INFINITY else 2**30
    assert 500 <= connections <= MAX_CONNECTIONS
    assert 64 <= backlog <= MAX_BACKLOG
    assert connections + backlog + RESERVED_FILES <= files
    assert connection_limits() == (connections, backlog)


def test_a_server_that_may_open_too_few_files_says_so_before_it_loads_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FileLimits(monkeypatch, 64, MIN_FILES - 1)

    assert refuses(tmp_path, "may open 511 files, and a server needs 512; raise")


def test_cores_and_memory_without_own_choice_are_divided() -> None:
    whole, part = make_settings(), divided(make_settings(processes=NUM))

    assert part.compute_threads == max(1, len(os.sched_getaffinity(0)) // NUM)
    assert part.task_memory_bytes is not None
    assert part.drain_delay_s > whole.drain_delay_s


def test_chosen_settings_hold_for_each_replica() -> None:
    chosen = {
        "compute_threads": 3,
        "trunk_cache_bytes": 0,
        "task_memory_bytes": 10,
        "drain_delay_s": 0,
    }

    part = divided(make_settings(processes=NUM, **chosen))

    assert {name: getattr(part, name) for name in chosen} == chosen


def test_each_replica_has_a_port_and_a_name_of_its_own() -> None:
    named = make_settings(processes=NUM, replica_id="east")

    replicas = [settings_of(named, index, port=9001 + index) for index in range(NUM)]

    assert [it.port for it in replicas] == [9001, 9002, 9003, 9004]
    assert [it.replica_id for it in replicas] == ["east-0", "east-1", "east-2", "east-3"]
    assert settings_of(make_settings(), 0, port=1).replica_id == ""


def test_a_process_with_several_threads_does_not_fork() -> None:
    ends = threading.Event()
    waiting = threading.Thread(target=ends.wait)
    waiting.start()
    try:
        with raises("invalid_settings", match="nunatak backbone add"):
            check_single()
    finally:
        ends.set()
        waiting.join()


def test_a_thread_that_has_ended_does_not_keep_a_process_from_forking(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("main\n")
    listed_alone = tmp_path / "2"
    listed_alone.mkdir()
    check_single(tmp_path)

    (listed_alone / "comm").write_text("joined\n")
    ends = threading.Timer(LISTED_S / 20, (listed_alone / "comm").unlink)
    ends.start()
    check_single(tmp_path)
    ends.join()


def test_a_template_finds_its_place_once_and_sigterm_ends_its_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = ReplicaPlace(supervisor=7, listeners=(3, 4, 5), reports_to=6)
    monkeypatch.setenv(PLACE_VARIABLE, str(place))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        assert ReplicaPlace.find() == place
        assert ReplicaPlace.find() is None
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert SIGNALS - blocked == {signal.SIGTERM}
