"""The README's commands, run in its order in a real shell."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from doubles.terminals import PROGRAM, ran

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands(block: str) -> list[str]:
    lines = (line.partition("  #")[0].strip() for line in block.splitlines())
    return [line for line in lines if line.startswith("nunatak ")]


def run(folder: Path, *words: str) -> str:
    # The default registry lies in the user's data directory.
    return ran(*words, folder=folder, XDG_DATA_HOME=str(folder), COLUMNS="120")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_story_of_the_readme_works_as_written(tmp_path: Path) -> None:
    registry = tmp_path / "nunatak" / "registry"
    before, asking, moving = [found for block in blocks("sh") if (found := commands(block))]
    (snippet,) = blocks("python")
    assert before.pop() == "nunatak serve --port 8080"

    for command in before:
        run(tmp_path, PROGRAM, *shlex.split(command)[1:])
    with ServerProcess(registry, log=tmp_path / "server.log") as server:
        for command in [*asking, *moving]:
            run(tmp_path, PROGRAM, *shlex.split(command.replace(ADDRESS, server.url))[1:])
        printed = run(tmp_path, sys.executable, "-c", snippet.replace(ADDRESS, server.url))

    assert "of the memory saved" in printed
    assert "attack" in printed
