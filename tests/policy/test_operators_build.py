"""Laws of `make install` where the native operators are built, or cannot be."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
