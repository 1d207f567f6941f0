"""A real Chromium for tests of the web page: pages that meet no error and ask nobody else."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on the path")


@contextmanager
def running_browser() -> Generator[Browser]:
    """Run a browser."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@contextmanager
def open_page(browser: Browser, address: str) -> Generator[Page]:
    """Open a page; at the end, it must have met no error and asked nobody else."""
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.set_default_timeout(10_000)
    errors = list[str]()
    asked = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda it: errors.append(it.text) if it.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert page.evaluate("window.broken") is None
    context.close()
    foreseen = (
        "Failed to load resource"  # the browser's own messages about statuses that tests cause
    )
    assert [it for it in errors if foreseen not in it] == []
    assert [it for it in asked if not it.startswith(f"{address}/")] == []
