"""The site of the documents: every page has a place, every link leads somewhere, search finds."""

import functools
import http.server
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from doubles.browsers import NEEDS_CHROMIUM, open_page, running_browser
from release import openapi, site, versions

NEEDS_ZENSICAL = pytest.mark.skipif(
    shutil.which("zensical", path=str(Path(sys.executable).parent)) is None,
    reason="no `zensical` in this environment",
)
SEARCHED = {
    "install": "docs/install",
    "lora": "docs/training",
    "csv": "docs/training",
    "regression": "docs/training",
    "gpu": "docs/training",
    "calibrate": "docs/training",
    "quantization": "docs/training",
    "export": "docs/interchange",
    "langchain": "examples/retrieval",
    "guardrails": "examples/nemo-guardrails",
    "litellm": "docs/gateways",
    "api key": "docs/security",
    "kubernetes": "docs/deployment",
    "typescript": "clients/typescript",
    "docker": "docs/deployment",
    "upgrade": "docs/upgrades",
    "canary": "docs/registry",
    "backup": "docs/production",
    "postgres": "docs/registry",
    "s3": "docs/registry",
    "prometheus": "docs/operations",
    "latency": "docs/loadtest",
    "memory": "docs/memory",
    "openai": "docs/neighbours",
    "deadline": "docs/client",
    "retry": "docs/client",
    "rollback": "docs/registry",
    "rerank": "docs/neighbours",
}
"""Words that users type, and the guide that must be among the first results."""
FIRST_RESULTS = 5
SEARCH_S = 10


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
        return


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of this checkout, without a dead link."""
    folder = tmp_path_factory.mktemp("site") / "docs"
    site.copy_sources(folder)
    assert site.build(folder) == 0
    return folder / "site"


@pytest.fixture(scope="module")
def page(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Page]:
    """Open a page of a server that has two versions of the site."""
    published = tmp_path_factory.mktemp("published")
    for ref in ("refs/heads/main", "refs/tags/v1.0.0"):
        versions.publish(built, published, ref)
    handler = functools.partial(QuietHandler, directory=str(published))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        running_browser() as browser,
    ):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with open_page(browser, f"http://127.0.0.1:{server.server_port}") as opened:
            yield opened
        server.shutdown()


def test_the_openapi_document_of_the_repository_is_current() -> None:
    assert openapi.FILE.read_text(encoding="utf-8") == openapi.text_of(openapi.document()), (
        "run `make openapi`"
    )


def test_every_page_is_in_the_navigation_once(tmp_path: Path) -> None:
    site.copy_sources(tmp_path / "docs")

    assert site.misplaced(tmp_path / "docs") == []


def test_a_page_outside_of_the_navigation_is_named(tmp_path: Path) -> None:
    site.copy_sources(tmp_path / "docs")
    (tmp_path / "docs" / "pages" / "lost.md").write_text("# Lost\n")

    assert site.misplaced(tmp_path / "docs") == ["lost.md"]


@NEEDS_ZENSICAL
@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nothing"])
def test_a_dead_link_fails_the_build(tmp_path: Path, link: str) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# Home\n\n[a page]({link})\n")
    (tmp_path / site.CONFIGURATION).write_text(
        '[project]\nsite_name = "x"\ndocs_dir = "pages"\nsite_dir = "site"\n'
    )

    assert site.build(tmp_path) != 0


@NEEDS_ZENSICAL
@pytest.mark.slow
def test_every_link_of_the_built_site_leads_to_a_file_of_the_site(built: Path) -> None:
    assert site.dead_links(built) == []
    assert (built / "deploy" / "kubernetes" / "nunatak.yaml").is_file()


def test_a_link_to_a_file_that_the_site_lacks_is_dead(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.html").write_text(
        '<a href="..">up</a> <a href=../lost.yaml>lost</a> <img src="a%20b.png"><a href="#x">x</a>'
        '<a href="https://x.example/y">y</a><a href="gone/#part">gone</a>'
    )
    (tmp_path / "index.html").touch()

    dead = site.dead_links(tmp_path)

    targets = ("../lost.yaml", "a%20b.png", "gone/")
    assert dead == [f"docs/index.html -> {it}" for it in targets]
    (tmp_path / "docs" / "a b.png").touch()
    assert f"docs/index.html -> {targets[1]}" not in site.dead_links(tmp_path)


@NEEDS_ZENSICAL
@pytest.mark.slow
def test_the_api_reference_describes_every_public_name(built: Path) -> None:
    import nunatak  # noqa: PLC0415
    import nunatak_client  # noqa: PLC0415

    pages = (built / "docs" / "reference").glob("nunatak*/index.html")
    text = "".join(it.read_text(encoding="utf-8") for it in pages)

    names = {*nunatak.__all__, *nunatak_client.__all__} - {"__version__"}
    assert {it for it in names if not re.search(rf'id="[\w.]+\.{it}"', text)} == set()


@NEEDS_ZENSICAL
@pytest.mark.slow
def test_the_pages_of_the_document_name_every_route_and_shape(built: Path) -> None:
    made = json.loads(openapi.FILE.read_text(encoding="utf-8"))
    routes = (built / "docs" / "reference" / "routes" / "index.html").read_text(encoding="utf-8")
    shapes = (built / "docs" / "reference" / "shapes" / "index.html").read_text(encoding="utf-8")

    assert [it for it in made["paths"] if f" {it}</code>" not in routes] == []
    assert [it for it in made["components"]["schemas"] if f'id="{it.lower()}"' not in shapes] == []


@NEEDS_ZENSICAL
@NEEDS_CHROMIUM
@pytest.mark.slow
def test_search_finds_the_words_that_users_type(page: Page) -> None:
    page.goto("/")
    page.get_by_role("button", name="Search").first.click()

    for word, wanted in SEARCHED.items():
        page.get_by_role("combobox", name="Search").fill(word)
        found = page.get_by_role("option")
        expect(found.first).to_have_attribute("href", _asked(word))
        # Until the search has ended, the list shows a part of what it finds.
        end = time.monotonic() + SEARCH_S
        while not _leads_to(wanted, found):
            assert time.monotonic() < end, (word, _hrefs(found))


@NEEDS_ZENSICAL
@NEEDS_CHROMIUM
@pytest.mark.slow
def test_the_site_begins_at_the_newest_release_and_offers_its_other_versions(page: Page) -> None:
    page.goto("/")

    expect(page).to_have_url(re.compile("/1.0/$"))
    offered = page.locator(".md-version__link")
    expect(offered).to_have_text(["1.0", "dev"])
    assert [it.rstrip("/").rpartition("/")[2] for it in _hrefs(offered)] == ["1.0", "dev"]


def test_the_newest_release_leads_the_versions_and_a_fix_replaces_its_release(
    tmp_path: Path,
) -> None:
    site, published = tmp_path / "site", tmp_path / "published"
    site.mkdir()
    for ref in ("heads/main", "tags/v1.9.0", "tags/v2.0.0rc1", "tags/v1.10.0", "tags/v1.9.1"):
        (site / "index.html").write_text(ref)
        versions.publish(site, published, f"refs/{ref}")

    listed = json.loads((published / "versions.json").read_text())
    assert [it["version"] for it in listed] == ["1.10", "1.9", "2.0.0rc1", "dev"]
    assert [it["aliases"] for it in listed] == [["latest"], [], [], []]
    assert "url=1.10/" in (published / "index.html").read_text()
    assert (published / "1.9" / "index.html").read_text() == "tags/v1.9.1"
    with pytest.raises(ValueError, match="refs/heads/other"):
        versions.publish(site, published, "refs/heads/other")


def _leads_to(wanted: str, found: Locator) -> bool:
    return any(f"/{wanted}/" in it for it in _hrefs(found)[:FIRST_RESULTS])


def _hrefs(found: Locator) -> list[str]:
    return found.evaluate_all("all => all.map((it) => it.href)")


def _asked(word: str) -> re.Pattern[str]:
    return re.compile(rf"\?h={re.escape(word.replace(' ', '+'))}(#|$)")
