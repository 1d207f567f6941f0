"""Laws of watching a process from outside."""

import itertools
import os
import socket
import subprocess
import sys

import pytest

from doubles.refusals import raises
from nunatak_loadtest.memory import MemorySampler, listening_pid


def test_first_and_last_sample_are_always_taken() -> None:
    ticks = itertools.count()
    sampler = MemorySampler(os.getpid(), interval_s=3600, clock=lambda: float(next(ticks)))

    with sampler:
        pass

    assert [sample.at_s for sample in sampler.samples] == [0, 1]


def test_sample_holds_the_process_in_its_order_of_size() -> None:
    with MemorySampler(os.getpid(), interval_s=3600) as sampler:
        pass

    sample = sampler.samples[0]
    assert sample.rss_bytes > 1024**2
    if sample.uss_bytes is not None and sample.pss_bytes is not None:
        assert sample.uss_bytes <= sample.pss_bytes <= sample.rss_bytes


def test_process_that_ends_leaves_its_samples() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        sampler = MemorySampler(process.pid, interval_s=3600)
        sampler.start()
        process.communicate(b"\n")
    sampler.stop()

    assert len(sampler.samples) == 1


def test_missing_process_is_an_error() -> None:
    with raises("process_not_found"):
        MemorySampler(2**22 + 1)


def test_server_of_this_machine_is_found_by_its_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        assert listening_pid(f"http://127.0.0.1:{port}") == os.getpid()


@pytest.mark.parametrize("server", ["http://192.0.2.1:80", "http://example.org", "nonsense"])
def test_server_of_another_machine_is_not_looked_for(server: str) -> None:
    assert listening_pid(server) is None
