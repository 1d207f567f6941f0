"""A session: the connection of this process to a Ray cluster, for the time of a command."""

import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import ray

from nunatak_contract.errors import NunatakError, invalid_option
from nunatak_registry.locations import parse_location

THIS: Final = "ray"
"""The cluster of this machine, or the cluster that RAY_ADDRESS names."""
CLIENT: Final = "ray://"
CONNECT_S: Final = 10.0


@contextmanager
def joined(on: str) -> Generator[None]:
    """Connect this process to a cluster, and disconnect it at the end.

    `on` is `ray`, or `ray://host:port` for the client server of a cluster. No cluster is started,
    because a cluster of this command alone would be no faster than local processes. A process that
    is connected already stays connected.
    """
    if on != THIS and not on.startswith(CLIENT):
        raise invalid_option(f"expected {THIS} or {CLIENT}HOST:PORT as the cluster, got {on!r}")
    if ray.is_initialized():
        yield
        return
    address = "auto" if on == THIS else on
    named = os.environ.get("RAY_ADDRESS", "") if on == THIS else on
    try:
        # Ray itself would try for minutes.
        host, _, port = named.removeprefix(CLIENT).rpartition(":")
        if host and port.isdigit():
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        problem = (str(error).splitlines() or ["no answer"])[0]
        place = f"RAY_ADDRESS={named}" if on == THIS and named else on
        raise NunatakError("ray_unavailable", address=place, problem=problem) from error
    try:
        yield
    finally:
        ray.shutdown()


def on_all_nodes(registry: str) -> str:
    """Return the location of a registry for other processes, which run in other folders."""
    folder = parse_location(registry).folder
    return registry if folder is None else str(folder)


def places(*, num_cpus: int, needs_gpu: bool) -> int:
    """Return how many workers of this size fit into the cluster at once; at least 1."""
    fitting = int(ray.cluster_resources().get("CPU", 0)) // num_cpus
    if needs_gpu:
        fitting = min(fitting, int(ray.cluster_resources().get("GPU", 0)))
    return max(1, fitting)
