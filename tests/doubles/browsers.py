"""A real Chromium for tests of the web page: pages that cause no error and call no other server."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The program without a window, if there is one: it starts sooner, and shows the same page."""
TIMEOUT_MS = 30_000
"""Patience on a busy machine, where the page waits longer between two readings of the server."""
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on the path")
IN_A_BROWSER = [NEEDS_CHROMIUM, pytest.mark.slow]
"""The marks of a file whose tests drive a browser."""
CONTRAST = """() => {
    const channel = (it) => it <= 0.03928 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) =>
        0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    const backOf = (it) => {
        for (let at = it; at; at = at.parentElement) {
            const color = numbers(getComputedStyle(at).backgroundColor);
            if (color.length === 3 || color[3] > 0) return color;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll("body *")].filter((it) =>
        it.checkVisibility() && [...it.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
    return texts.map((it) => {
        const [a, b] = [luminance(numbers(getComputedStyle(it).color)), luminance(backOf(it))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        return [ratio, `${it.tagName} ${it.className} ${it.textContent.slice(0, 30)}`];
    }).filter(([ratio]) => ratio < 4.5);
}"""
"""Texts with less contrast to their background than WCAG 2 asks for."""


@contextmanager
def running_browser() -> Generator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def guard(page: Page, *paths: str) -> list[str | None]:
    """Let these paths need the key `opensesame`; return what each request presents."""
    presented = list[str | None]()

    def answer(route: Route) -> None:
        presented.append(route.request.headers.get("authorization"))
        if presented[-1] == "Bearer opensesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "a key is needed", "code": "unauthorized"})

    for path in paths:
        page.route(path, answer)
    return presented


@contextmanager
def open_page(browser: Browser, address: str) -> Generator[Page]:
    """Open a page; until the end, it must cause no error and call no other server."""
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    errors = list[str]()
    asked = list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda it: errors.append(it.text) if it.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert page.evaluate("window.broken") is None
    # A handler of routes that still waits for its answer would fail in the next test.
    page.unroute_all(behavior="ignoreErrors")
    context.close()
    foreseen = (
        "Failed to load resource"  # the browser's own messages about statuses that tests cause
    )
    assert [it for it in errors if foreseen not in it] == []
    assert [it for it in asked if not it.startswith(f"{address}/")] == []
