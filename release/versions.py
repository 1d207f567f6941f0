"""Adds a built site to those of other versions: `python -m release.versions FOLDER REF`.

Each version is a folder. `versions.json` is what the theme's selector reads (mike's format), and
`index.html` leads to the newest release, or to the newest candidate if there is none.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from packaging.version import Version

BUILT = Path(__file__).parents[1] / "build" / "docs" / "site"
DEVELOPMENT = "dev"
"""The version of the main branch."""
INDEX = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={}/">\n'


def version_of(ref: str) -> str:
    """Return the folder for a reference of git: `1.2` for v1.2.3, `1.2.0rc1` for v1.2.0rc1.

    Raises:
        ValueError: it is neither the main branch nor the tag of a version.
    """
    if ref == "refs/heads/main":
        return DEVELOPMENT
    tag = re.fullmatch(r"refs/tags/v(\d+\.\d+)(\.\d+)(rc\d+)?", ref)
    if tag is None:
        raise ValueError(f"expected refs/heads/main or a tag such as refs/tags/v1.2.3, got {ref}")
    return "".join(tag.groups("")) if tag[3] else tag[1]


def publish(built: Path, published: Path, ref: str) -> None:
    """Put a built site in place of its version's former one, and list all versions anew."""
    target = published / version_of(ref)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target)
    found = {it.parent.name for it in published.glob("*/index.html")} - {DEVELOPMENT}
    newest_first = sorted(map(Version, found), key=lambda it: (not it.is_prerelease, it))[::-1]
    names = [str(it) for it in newest_first]
    if (published / DEVELOPMENT).is_dir():
        names.append(DEVELOPMENT)
    listed = [
        {"version": name, "title": name, "aliases": [] if place else ["latest"]}
        for place, name in enumerate(names)
    ]
    (published / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", "utf-8")
    (published / "index.html").write_text(INDEX.format(names[0]), "utf-8")
    # The forge would otherwise leave out files whose names begin with an underscore.
    (published / ".nojekyll").touch()


if __name__ == "__main__":
    publish(BUILT, Path(sys.argv[1]), sys.argv[2])
