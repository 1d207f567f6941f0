"""The `nunatak` command run in this process, on a wide terminal without colours; and programs."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typer import main, testing
from typer.core import TyperGroup
from typer.testing import CliRunner

from nunatak_cli.main import app

PROGRAM = str(Path(sys.executable).with_name("nunatak"))
WIDE = {"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb", "NUNATAK_REGISTRY": ""}
get_command = cache(main.get_command)
# At each call, the runner would make all commands again from their functions.
setattr(testing, "_get_command", get_command)  # noqa: B010 - a private name
_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class Ran:
    """Exit code and output of a command."""

    def __init__(self, *, exit_code: int, stdout: str, stderr: str) -> None:
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr

    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object and nothing else."""
        return _OBJECT.validate_python(json.loads(self.stdout))

    def assert_refused(self, code: str, *words: str, status: int = 1) -> None:
        """This status, no output, and one line of an error with this code and these words."""
        assert (self.exit_code, self.stdout) == (status, ""), self.stderr
        assert self.stderr.partition(": ")[0] == f"error [{code}]", self.stderr
        assert self.stderr.count("\n") == 1
        assert [it for it in words if it not in self.stderr] == [], self.stderr


def nunatak(*arguments: str, typed: str = "") -> Ran:
    """Run the command. Exceptions that would be printed as tracebacks are raised."""
    result = CliRunner().invoke(app, arguments, input=typed, env=WIDE, catch_exceptions=False)
    return Ran(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)


def command_paths() -> Iterator[tuple[str, ...]]:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    for name, command in root.commands.items():
        if isinstance(command, TyperGroup):
            yield from ((name, inner) for inner in command.commands)
        else:
            yield (name,)


def ran(*words: str, folder: Path | None = None, typed: str = "", **environment: str) -> str:
    """Run a program to its end, which must be a success; return what it has printed."""
    done = subprocess.run(  # noqa: S603 - the tests' own words; no shell
        words,
        cwd=folder,
        env=os.environ | environment,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout
