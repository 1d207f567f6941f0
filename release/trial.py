"""A user's first steps with the files of a release, and with nothing else.

A ready task is trained and served. Python, TypeScript's package and curl ask the server, and all
get the same answer.
"""

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

SUMS = "SHA256SUMS"
READY = "Nunatak is ready on "
TEXT = "Third letter, and still nobody answers me!"
LABELS = {"friendly", "frustrated", "neutral", "urgent"}
LEAST_ACCURACY = 0.8
"""Of one training on the examples of the wheel; the most frequent label has a share of 0.27."""
IN_PYTHON = """
import sys
from nunatak_client import Client

with Client(sys.argv[1]) as client:
    kernels = client.info().kernels
    assert "native_attention" in kernels, f"nunatak-ops is not in use: {kernels}"
    print(client.predict("tone", sys.argv[2]).predicted[0])
"""
IN_JAVASCRIPT = """
import { Client } from "@nunatak/client";

const [url, text] = process.argv.slice(2);
const answer = await new Client(url).predict("tone", text);
console.log(answer.predicted);
"""


def walk(dist: Path, environment: Path, folder: Path) -> None:
    """Train, serve and ask; raise an error where an answer is missing or another one."""
    programs = environment / "bin"
    output(folder=dist, command=("sha256sum", "--check", "--strict", "--quiet", SUMS))
    place = ("--registry", "registry")
    output((programs / "nunatak", "init", "first", "--with", "tone"), folder=folder)
    training = ("train-all", "first/tasks.yaml", "--create", "--json", "--quiet", *place)
    trained = json.loads(output((programs / "nunatak", *training), folder=folder))
    (accuracy,) = [
        it["test_metrics"]["accuracy"] for it in trained["tasks"] if it["task"] == "tone"
    ]
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"expected an accuracy of {LEAST_ACCURACY} or more, got {accuracy}")
    output(("npm", "install", "--silent", *dist.absolute().glob("*.tgz")), folder=folder)
    (folder / "ask.mjs").write_text(IN_JAVASCRIPT, encoding="utf-8")
    body = json.dumps({"inputs": TEXT})
    with server((programs / "nunatak", "serve", "--port", "0", *place), folder=folder) as url:
        by_python = output((programs / "python", "-c", IN_PYTHON, url, TEXT), folder=folder)
        by_node = output(("node", "ask.mjs", url, TEXT), folder=folder)
        sent = ("-H", "content-type: application/json", "-d", body)
        by_curl = output(
            ("curl", "-sS", "--fail", f"{url}/v1/tasks/tone/predict", *sent), folder=folder
        )
    answers = (by_python, by_node, json.loads(by_curl)["predicted"])
    if len(set(answers)) != 1 or by_python not in LABELS:
        raise SystemExit(f"expected one label from Python, Node and curl, got {answers}")


def output(command: tuple[str | Path, ...], *, folder: Path) -> str:
    """Run a program outside of the checkout, and return its output."""
    finished = subprocess.run(  # noqa: S603 - our own programs; no shell
        command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    return finished.stdout.strip()


@contextmanager
def server(command: tuple[str | Path, ...], *, folder: Path) -> Generator[str]:
    """Run a server; yields its address."""
    with subprocess.Popen(  # noqa: S603 - our own program; no shell
        command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            (ready,) = [next(it for it in process.stdout or () if it.startswith(READY))]
            yield ready.removeprefix(READY).strip()
        finally:
            process.terminate()


def _environment() -> dict[str, str]:
    return {name: it for name, it in os.environ.items() if name != "PYTHONPATH"}
