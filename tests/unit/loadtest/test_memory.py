"""Laws of watching a process from outside."""

import os
import socket
import subprocess
import sys

import pytest

from nunatak_loadtest.processes import listening_pid, process_bytes


def test_memory_of_a_process_is_in_its_order_of_size() -> None:
    found = process_bytes(os.getpid())

    rss, pss, uss = (found[f"{name}_bytes"] for name in ("rss", "pss", "uss"))
    assert rss is not None
    assert rss > 1024**2
    if uss is not None and pss is not None:
        assert uss <= pss <= rss


def test_process_that_is_gone_or_unknown_has_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.communicate(b"\n")

    assert process_bytes(process.pid) == {}
    assert process_bytes(None) == {}


def test_server_of_this_machine_is_found_by_its_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        assert listening_pid(f"http://127.0.0.1:{port}") == os.getpid()


@pytest.mark.parametrize("server", ["http://192.0.2.1:80", "http://example.org", "nonsense"])
def test_server_of_another_machine_is_not_looked_for(server: str) -> None:
    assert listening_pid(server) is None
