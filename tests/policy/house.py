"""Measures of the code: the number of files, and the number of files that one request crosses.

`python tests/policy/house.py` prints the measures; `test_house.py` limits them.
"""

import ast
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType

import httpx

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from doubles.backbones import tiny_backbone  # noqa: E402 - a script needs the path first
from doubles.serving import make_settings, running_server  # noqa: E402
from doubles.tasks import publish_tiny_task  # noqa: E402
from nunatak_registry import Registry  # noqa: E402
from release import blocking_client  # noqa: E402

WARM_UP_REQUESTS, TRACED_REQUESTS = 3, 24


@cache
def product_files() -> dict[str, list[Path]]:
    """Return the Python files of each package that git keeps, by the package's name."""
    tops = [it for it in ROOT.iterdir() if it.name[0] != "." and it.name != "build"]
    folders = sorted(it.parent for top in tops for it in top.glob("**/nunatak*/__init__.py"))
    outer = [it for it in folders if "build" not in it.parts]
    return {it.name: sorted({*it.rglob("*.py")} - {blocking_client.TARGET}) for it in outer}


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(file.read_text())


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of the parsed file; a walk takes as long as the parsing."""
    return tuple(ast.walk(tree_of(file)))


def num_lines(files: Iterable[Path]) -> int:
    """Return the number of lines of all files together."""
    return sum(len(it.read_text().splitlines()) for it in files)


def code_lines(file: Path) -> int:
    """Return the number of lines that do something.

    Not counted: blank lines, comments, docstrings, imports, decorators and signatures.
    """
    text = file.read_text()
    other = {
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if not line.strip() or line.strip().startswith("#")
    }
    for node in nodes_of(file):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                first = min([it.lineno for it in node.decorator_list] or [node.lineno])
                other.update(range(first, max(node.body[0].lineno, node.lineno + 1)))
            case ast.ClassDef():
                other.update(it.lineno for it in node.decorator_list)
            case _:
                pass
    return len(text.splitlines()) - len(other)


def shared_class_names() -> dict[str, set[str]]:
    """Return the public class names that more than one package defines, with those packages."""
    packages = defaultdict[str, set[str]](set)
    for package, files in product_files().items():
        for file in files:
            for node in tree_of(file).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    packages[node.name].add(package)
    return {name: found for name, found in packages.items() if len(found) > 1}


def files_of_one_predict() -> set[Path]:
    """Return the product files whose code runs between a warm request and its answer.

    The server is a real one on a real port; calls are traced in all of its threads. Work that
    belongs to no request, such as a beat, may run at the same time. So only files count that every
    one of several requests crosses.
    """
    product = {str(file): file for files in product_files().values() for file in files}
    crossed, is_on = list[set[Path]](), False

    def note(frame: FrameType, event: str, _: object) -> None:
        if is_on and event == "call" and frame.f_code.co_filename in product:
            crossed[-1].add(product[frame.f_code.co_filename])

    # Polls of the registry belong to no request, so the trace begins after the first poll.
    settings = make_settings(registry_poll_ms=60_000)
    threading.setprofile(note)
    try:
        with tempfile.TemporaryDirectory() as folder, Registry.open(folder) as registry:
            backbone = tiny_backbone()
            publish_tiny_task(registry, backbone, task="tone")
            with running_server(backbone, registry, settings) as address:
                url, body = f"{address}/v1/tasks/tone/predict", {"inputs": "good morning"}
                with httpx.Client() as client:
                    for _ in range(WARM_UP_REQUESTS):
                        client.post(url, json=body).raise_for_status()
                    for _ in range(TRACED_REQUESTS):
                        crossed.append(set())
                        is_on = True
                        client.post(url, json=body).raise_for_status()
                        is_on = False
    finally:
        threading.setprofile(None)
    return set[Path].intersection(*crossed)


def main() -> None:
    """Print the measures."""
    packages = product_files()
    for name, files in packages.items():
        print(f"{name:22} {len(files):4} files {num_lines(files):6} lines")
    files = [file for own in packages.values() for file in own]
    share = sum(map(code_lines, files)) / num_lines(files)
    print(f"{'product':22} {len(files):4} files {num_lines(files):6} lines, {share:.3f} code")
    crossed = sorted(files_of_one_predict())
    print(f"one warm predict crosses {len(crossed)} files")
    for file in crossed:
        print(f"  {file.relative_to(ROOT)}")
    shared = shared_class_names()
    print(f"{len(shared)} class names stand in two packages: {', '.join(sorted(shared))}")


if __name__ == "__main__":
    main()
