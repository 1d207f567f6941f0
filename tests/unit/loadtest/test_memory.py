"""Laws of watching a process from outside."""

import os
import socket
import subprocess
import sys

import pytest

from doubles.measured import MEMORY
from nunatak_loadtest.processes import MemorySample, cache_hit_share, listening_pid, process_bytes


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([(10, 10)], None),
        ([(10, 10), (10, 10)], 0),
        ([(10, 10), (12, 12), (13, 17)], 0.3),
        ([(10, 10), (1, 90), (11, 99)], None),
    ],
    ids=["one-sample", "no-request", "some", "another-process"],
)
def test_the_cache_counts_for_one_process_alone(
    counts: list[tuple[int, int]], share: float | None
) -> None:
    def sampled(hits: int, misses: int) -> MemorySample:
        cache = MEMORY.trunk_cache.model_copy(update={"hits": hits, "misses": misses})
        return MemorySample(at_s=0, ledger=MEMORY.model_copy(update={"trunk_cache": cache}))

    assert cache_hit_share([sampled(*it) for it in counts]) == share


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
