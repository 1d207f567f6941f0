"""Rules of every test: the marker is the folder, and nothing reaches the network.

Tests of the model check the shape of each tensor in the arguments and results of its functions.
"""

import gc
import os
import shutil
import socket
import tempfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from functools import cache
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import jaxtyping
import pytest

from doubles import native_ops, statements
from doubles.postgres import PostgresServer, find_binaries, private_postgres
from release import blocking_client

if TYPE_CHECKING:
    from doubles.published import TwinFactory
    from nunatak_model import Backbone
    from nunatak_registry import Registry

TESTS = Path(__file__).parent
MODEL = TESTS.parent / "model"
CHECKS_SHAPES = (TESTS / "unit" / "model",)
"""The folders of tests with checks of shapes. Other tests would find nothing more."""

MEMORY, MIN_MEMORY_BYTES = Path("/dev/shm"), 4 * 2**30  # noqa: S108 - folders of tests are private
"""A folder in memory, and the room that it must have."""

COPIES = ("distilbert", "electra", "gte", "llama")
"""Families with the layers of another family."""

# For tiny models, the synchronisation of a second thread costs more than the thread saves. torch
# reads the variable at its first import, here and in the processes of tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _put_folders_in_memory() -> None:
    """Let all temporary folders, here and in the processes of tests, lie in memory if it has room.

    A registry waits until the disk has its files: on a disk, tests wait for half of their time.
    """
    state = os.statvfs(MEMORY) if MEMORY.is_dir() else None
    is_fit = state is not None and not state.f_flag & os.ST_NOEXEC
    if is_fit and shutil.disk_usage(MEMORY).free >= MIN_MEMORY_BYTES:
        tempfile.tempdir = os.environ.setdefault("TMPDIR", str(MEMORY))


_put_folders_in_memory()

# Git does not keep the blocking client.
blocking_client.write()

# Nearly all tests of the registry and the server open registries.
statements.share()

# Tests of the native operators build their own. All other tests run torch's operations.
native_ops.hide()


def _modules_with_shapes() -> list[str]:
    """Modules of the model whose annotations name axes."""
    return [
        ".".join(path.relative_to(MODEL).with_suffix("").parts)
        for path in sorted(MODEL.rglob("*.py"))
        if "from jaxtyping import" in path.read_text(encoding="utf-8")
    ]


# Each client of httpx would read the same certificates, which takes 20 to 60 ms.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)  # noqa: SLF001 - no public name

# Set before the first import of the model, because modules imported earlier are not checked.
jaxtyping.install_import_hook(_modules_with_shapes(), "beartype.beartype")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes only in the tests of the model and in their fixtures."""
    is_checked = any(item.path.is_relative_to(folder) for folder in CHECKS_SHAPES)
    jaxtyping.config.update("jaxtyping_disable", not is_checked)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder, and mark as slow what other tests nearly cover.

    These are combinations of parameters beyond those that the markers `each` and `pairs` ask for,
    and families that copy another's layers.
    """
    products = defaultdict[tuple[str, int], list[pytest.Function]](list)
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(getattr(pytest.mark, folder))
        if not isinstance(item, pytest.Function):
            continue
        if _is_of_a_copy(item):
            item.add_marker(pytest.mark.slow)
        for size, marker in enumerate(("each", "pairs"), start=1):
            if item.get_closest_marker(marker) and not item.get_closest_marker("slow"):
                products[item.nodeid.partition("[")[0], size].append(item)
    for (_, size), product in products.items():
        # Combinations share the objects of their values; the text of a tensor takes long.
        kept = _cover(
            [[(name, id(value)) for name, value in it.callspec.params.items()] for it in product],
            size=size,
        )
        for index in set(range(len(product))) - kept:
            product[index].add_marker(pytest.mark.slow)


def _is_of_a_copy(item: pytest.Function) -> bool:
    """Whether the test runs with a backbone whose family has the layers of another family."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return any(parameters.get(name) in COPIES for name in ("factory", "family"))


def _cover(combined: Sequence[list[tuple[str, int]]], *, size: int) -> set[int]:
    """Return the places of combinations in which all values of `size` parameters occur together."""
    parts = [set(combinations(sorted(values), size)) for values in combined]
    missing, kept = set[object]().union(*parts), set[int]()
    while missing:
        best = max(range(len(parts)), key=lambda index: len(parts[index] & missing))
        kept.add(best)
        missing -= parts[best]
    return kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage during the collection of tests, nor later among what is collected.

    Each full garbage collection would walk through a million objects that nearly all stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def uncollected() -> Generator[None]:
    """Collect no garbage in a test that measures time: one collection may take seconds."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run `async def` tests on asyncio, as the server runs."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    """A private PostgreSQL server, if its programs are installed."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server programs on this machine (Debian: postgresql)")
    with private_postgres(binaries) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    """The server, with empty databases for one test."""
    return postgres_server.for_one_test()


@pytest.fixture(scope="session")
def backbone() -> "Backbone":
    """Return the tiny backbone of random weights."""
    from doubles.backbones import tiny_backbone  # noqa: PLC0415 - many tests need no torch

    return tiny_backbone()


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> "TwinFactory":
    """Return what makes BERT checkpoints on one base, as transformers saves them."""
    from doubles.published import TwinFactory  # noqa: PLC0415 - many tests need no transformers

    return TwinFactory(tmp_path_factory.mktemp("bert"), family="bert")


@pytest.fixture
def registry(tmp_path: Path) -> "Generator[Registry]":
    """Open an empty registry in a folder of the test, and close it afterwards."""
    from nunatak_registry import Registry  # noqa: PLC0415 - many tests need no registry

    with Registry.open(tmp_path / "registry") as opened:
        yield opened


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the caches of tests, here and in their processes, out of the user's folder."""
    os.environ["NUNATAK_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that would leave the machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and not _is_loopback(str(address[0])):
            raise OSError(f"tests must not reach the network, tried {address!r}")
        connect(self, address)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
