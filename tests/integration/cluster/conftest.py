"""One Ray cluster for all tests of this folder, because its start takes seconds."""

from collections.abc import Generator

import pytest

from doubles.clusters import NodesOfRay, ray_nodes


@pytest.fixture(scope="session")
def nodes() -> Generator[NodesOfRay]:
    with ray_nodes(head_cpus=2) as started:
        yield started


@pytest.fixture(autouse=True)
def _only_loopback() -> None:
    """Let these tests reach the cluster, which listens at the machine's own address."""
