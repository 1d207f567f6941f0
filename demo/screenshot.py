"""The README's picture of the web page: the demo's tasks in a real browser.

The script needs the registry of `make demo`, the `dev` extra and Chromium.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from server_process import ServerProcess

from nunatak_client import Client

ROOT = Path(__file__).parent.parent
REGISTRY = ROOT / ".nunatak" / "demo"
PICTURE = ROOT / "docs" / "images" / "page.png"
SIZE = {"width": 1120, "height": 1180}
NUM_QUESTIONS = 6
"""Texts that are sent before the picture, so that the page shows some traffic."""


def main() -> None:
    """Serve the tasks, ask them, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", type=Path, default=REGISTRY, help="where the demo published")
    parser.add_argument("--output", type=Path, default=PICTURE, help="where the picture goes")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=SIZE["width"], help="of the window, in pixels")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no `chromium` on the path; on Debian: apt install chromium")
    if not arguments.registry.exists():
        sys.exit(f"no registry at {arguments.registry}; `make demo` makes one")
    with ServerProcess(arguments.registry) as server, sync_playwright() as playwright:
        with Client(server.url) as client:
            for task in client.tasks():
                client.preload(task.name)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": arguments.width, "height": SIZE["height"]},
            color_scheme=arguments.scheme,
            reduced_motion="reduce",
        )
        page.goto(server.url)
        ask(page)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=arguments.output, full_page=True)
        browser.close()


def ask(page: Page) -> None:
    """Ask all tasks a few times, and wait until the page shows the traffic."""
    for _ in range(NUM_QUESTIONS):
        page.click("#send")
        page.wait_for_selector("#send:enabled")
    page.wait_for_selector(".answer")
    page.wait_for_function("document.querySelectorAll('#rate-line polyline')[0].points.length > 2")


if __name__ == "__main__":
    main()
