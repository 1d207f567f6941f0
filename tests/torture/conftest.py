"""The process that forks lives, shared by every test; faults need a C compiler."""

from collections.abc import Generator

import pytest

from torture.fork_server import ForkServer, compiler, fork_server


@pytest.fixture(scope="session")
def forks() -> Generator[ForkServer]:
    with fork_server(with_faults=compiler() is not None) as forks:
        yield forks


@pytest.fixture(scope="session")
def faulty_forks(forks: ForkServer) -> ForkServer:
    if compiler() is None:
        pytest.skip("no C compiler on this machine, which the library of faults needs")
    return forks
