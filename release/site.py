"""Builds the documents as a site: `python -m release.site`, into `build/docs/site`.

The sources are copied to the places that they have in the repository, so a link is true in both.
Added are pages that are made: the routes and shapes of the OpenAPI document, and the notebook.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from release import openapi

ROOT = Path(__file__).parents[1]
CONFIGURATION = "zensical.toml"
RECORDS = "docs/decisions/0*.md"
"""Stands in the navigation for all records of decisions."""
LINK = re.compile(r"\]\((?![a-z]+:|/|#)([^)#\s]+)")
"""The target of a relative link in Markdown."""
HREF = re.compile(r"""(?:href|src)=["']?(?![a-z]+:|[/#"'])([^"'#?>\s]+)""")
"""The target of a relative link in HTML, without an anchor."""
NOTEBOOK = Path("docs/first-task.ipynb")


def copy_sources(folder: Path) -> None:
    """Write the configuration and the pages into a folder, in place of those there."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    for source in ("docs", "examples"):
        shutil.copytree(ROOT / source, pages / source)
    for source in (*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "clients/typescript/README.md"):
        copied = pages / source.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copied)
    records = sorted((pages / RECORDS).parent.glob(Path(RECORDS).name))
    listed = ", ".join(f'"{it.relative_to(pages).as_posix()}"' for it in records)
    text = (ROOT / "release" / CONFIGURATION).read_text(encoding="utf-8")
    (folder / CONFIGURATION).write_text(text.replace(f'"{RECORDS}"', listed), encoding="utf-8")
    made = json.loads(openapi.FILE.read_text(encoding="utf-8"))
    for name, text in (
        ("docs/reference/routes.md", openapi.routes_page(made)),
        ("docs/reference/shapes.md", openapi.shapes_page(made)),
        (str(NOTEBOOK.with_suffix(".md")), notebook_page()),
    ):
        (pages / name).write_text(text, encoding="utf-8")
    for page in list(pages.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(f"({NOTEBOOK.name})", f"({NOTEBOOK.stem}.md)"))
        copy_linked(page, pages)


def copy_linked(page: Path, pages: Path) -> None:
    """Copy the files of the repository that a page links to, such as those of `deploy`."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        copied = (page.parent / target).resolve()
        if copied.is_relative_to(pages.resolve()) and not copied.exists():
            source = ROOT / copied.relative_to(pages.resolve())
            if source.is_file():
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copied)


def dead_links(site: Path) -> list[str]:
    """Return the links of a built site, as `PAGE -> TARGET`, that lead to no file of the site."""
    return sorted(
        f"{page.relative_to(site)} -> {target}"
        for page in site.rglob("*.html")
        # Absolute links of this page, for a server's root, say nothing about its own place.
        if page.name != "404.html"
        for target in set(HREF.findall(page.read_text(encoding="utf-8")))
        if not _leads(page.parent / unquote(target))
    )


def _leads(place: Path) -> bool:
    return place.is_file() or (place / "index.html").is_file()


def notebook_page() -> str:
    """Return the notebook as Markdown."""
    parts = list[str]()
    for cell in json.loads((ROOT / NOTEBOOK).read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def misplaced(folder: Path) -> list[str]:
    """Return pages that are not in the navigation, and entries twice or without a page."""
    configuration = tomllib.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
    entries = list(_targets(configuration["project"]["nav"]))
    pages = folder / "pages"
    found = {it.relative_to(pages).as_posix() for it in pages.rglob("*.md")}
    return sorted(
        found.symmetric_difference(entries) | {it for it in entries if entries.count(it) > 1}
    )


def build(folder: Path) -> int:
    """Build the site of a folder; return 0, or another number at a dead link or anchor."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, check=False).returncode  # noqa: S603 - our own


def _targets(entry: Any) -> Iterator[str]:  # noqa: ANN401 - a tree of lists, tables and texts
    if isinstance(entry, str):
        yield entry
        return
    for it in entry.values() if hasattr(entry, "values") else entry:
        yield from _targets(it)


def main() -> None:
    """Build the site of the repository."""
    folder = ROOT / "build" / "docs"
    copy_sources(folder)
    if wrong := misplaced(folder):
        sys.exit(f"{CONFIGURATION} must name every page once, but see: {', '.join(wrong)}")
    if status := build(folder):
        sys.exit(status)
    if dead := dead_links(folder / "site"):
        sys.exit(f"expected links to files of the site, got {len(dead)} dead: {', '.join(dead)}")


if __name__ == "__main__":
    main()
