"""The files of the web page: the sent files, their policy, and files that are never sent."""

import re
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from nunatak_registry import Registry
from nunatak_server import page
from nunatak_server.http.pages import MEDIA_TYPES

FOLDER = Path(str(page.__file__)).parent
PAGES = {"/": "index.html", "/docs": "docs.html"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Generator[Registry]:
    with Registry.open(tmp_path_factory.mktemp("registry")) as opened:
        yield opened


@pytest.mark.parametrize("path", [*PAGES, "/page/page.js", "/page/page.css", "/page/icon.svg"])
async def test_every_file_allows_nothing_from_elsewhere(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.get(path)

    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "__init__.py", "index.html"])
async def test_no_other_file_is_sent(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/page/{name}")

    assert answer.status_code == 404
    assert answer.json()["code"] == "route_not_found"


@pytest.mark.parametrize("name", sorted(it.name for it in FOLDER.glob("*.*") if it.suffix != ".py"))
def test_no_file_names_another_site_or_a_missing_file_or_reads_text_as_html(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")

    assert not re.search(r"(?:src|href|from|url)[=( ]*[\"']?(?:https?:)?//", text)
    assert set(re.findall(r"/page/([\w.]+)", text)) <= set(MEDIA_TYPES)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
