"""The ids of requests."""

import os
from types import SimpleNamespace
from typing import Any

from nunatak_server.http.access import give_id, request_id_of

NUM = 3


def ids() -> list[str]:
    app = SimpleNamespace(state=SimpleNamespace(runtime=SimpleNamespace(replica_id="r")))
    scopes: list[dict[str, Any]] = [{"app": app, "headers": []} for _ in range(NUM)]
    for scope in scopes:
        give_id(scope)
    return [str(request_id_of(scope)) for scope in scopes]


def ids_of_fork() -> list[str]:
    """Return the first ids of a process that is forked from this one."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, " ".join(ids()).encode())
        os._exit(0)
    os.close(here)
    os.waitpid(child, 0)
    with os.fdopen(there) as pipe:
        return pipe.read().split()


def test_no_two_processes_of_one_fork_give_the_same_ids() -> None:
    found = [*ids_of_fork(), *ids_of_fork(), *ids()]

    assert len(set(found)) == 3 * NUM
