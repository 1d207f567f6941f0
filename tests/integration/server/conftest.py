"""A real browser, and the page of a server in it; a module names its server by `address`."""

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from doubles.browsers import open_page, running_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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
