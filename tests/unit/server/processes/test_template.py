"""The template of a local fleet: the settings of its replicas, and what keeps it from a fork."""

import os
import threading

import pytest

from doubles.refusals import raises
from doubles.serving import make_settings
from nunatak_server.processes.supervisor import PLACE_VARIABLE, ReplicaPlace
from nunatak_server.processes.template import check_single, divided, settings_of

NUM = 4


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


def test_a_template_finds_its_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ReplicaPlace(supervisor=7, listeners=(3, 4, 5), reports_to=6)
    monkeypatch.setenv(PLACE_VARIABLE, str(place))

    assert ReplicaPlace.find() == place
    assert ReplicaPlace.find() is None
