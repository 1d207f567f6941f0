"""A registry with what the module's `publish` puts there, servers of it, and a real browser.

Tests that change the registry have their own copy.
"""

import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from doubles.browsers import open_page, running_browser
from doubles.serving import make_settings, running_client, running_server
from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.settings import ServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def stocked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, backbone: Backbone
) -> Path:
    folder = tmp_path_factory.mktemp("stocked")
    with Registry.open(folder) as opened:
        request.module.publish(opened, backbone)
    return folder


@pytest.fixture(scope="module")
def registry(stocked: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    shutil.copytree(stocked, folder, dirs_exist_ok=True)
    with Registry.open(folder) as opened:
        yield opened


@pytest.fixture
def copied(stocked: Path, tmp_path: Path) -> Generator[Registry]:
    """Open a copy of the module's registry, for one test."""
    shutil.copytree(stocked, tmp_path, dirs_exist_ok=True)
    with Registry.open(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def settings() -> ServerSettings:
    """Return the settings of the module's servers."""
    return make_settings()


@pytest.fixture(scope="module")
def address(backbone: Backbone, registry: Registry, settings: ServerSettings) -> Generator[str]:
    """Run a real server on the module's registry; yield its address."""
    with running_server(backbone, registry, settings) as found:
        yield found


@pytest.fixture(scope="module")
async def client(
    backbone: Backbone, registry: Registry, settings: ServerSettings
) -> AsyncGenerator[httpx.AsyncClient]:
    """Run an application on the module's registry; yield a client of it."""
    async with running_client(backbone, registry, settings) as opened:
        yield opened


@pytest.fixture
async def caller(backbone: Backbone, copied: Registry) -> AsyncGenerator[httpx.AsyncClient]:
    """Run an application on the registry of one test; yield a client of it."""
    async with running_client(backbone, copied) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> "Generator[Browser]":
    """Run a browser without a window."""
    with running_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: "Browser", address: str) -> "Generator[Page]":
    """Open the page of the module's server."""
    with open_page(browser, address) as opened:
        yield opened
