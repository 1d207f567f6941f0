"""A Ray cluster of several nodes on this machine, whose nodes a test can kill."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from doubles.proxies import free_port

STORE_BYTES: Final = 100 * 1024**2
ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A node that is killed is found dead after two of these checks instead of five.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "2",
    # Tests fill the machine's memory with other processes, which are not Ray's to judge.
    "RAY_memory_monitor_refresh_ms": "0",
}


class NodesOfRay:
    """The nodes of a cluster. The head has the cluster's own services."""

    def __init__(self, cluster: Any) -> None:  # noqa: ANN401 - Ray's own test cluster has no types
        self._cluster = cluster
        self.address: str = cluster.address

    def add(self, *, num_cpus: int = 1) -> object:
        """Start a node, and return a handle for `kill`."""
        return self._cluster.add_node(num_cpus=num_cpus, object_store_memory=STORE_BYTES)

    def kill(self, node: object) -> None:
        """Kill a node with all of its processes, without a word to the others."""
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def ray_nodes(
    *, head_cpus: int, has_haproxy: bool = True, redis: str | None = None
) -> Generator[NodesOfRay]:
    """Start a cluster with one node, to which `RAY_ADDRESS` leads, and end all its processes.

    Without `has_haproxy`, Ray Serve listens with its proxy in Python. `redis` is the `host:port` of
    a Redis that keeps the state of the head.
    """
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'nunatak[ray]')")
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - tests without Ray skip

    before = dict(os.environ)
    os.environ.update(ENVIRONMENT, RAY_SERVE_ENABLE_HA_PROXY=str(int(has_haproxy)))
    if redis is not None:
        os.environ["RAY_REDIS_ADDRESS"] = redis
    head = {
        "num_cpus": head_cpus,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "gcs_server_port": free_port(),
    }
    cluster: Any = Cluster(initialize_head=True, connect=False, head_node_args=head)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield NodesOfRay(cluster)
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)
