"""Laws of the command as a whole."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.testing import CliRunner

from docs.configuration import BEGIN, END, with_settings
from doubles.terminals import WIDE, command_paths, get_command, nunatak, ran
from nunatak_cli import INTERRUPTED
from nunatak_cli.main import app
from nunatak_cli.serving.serve import SECTIONS
from nunatak_server.settings import ServerSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SOURCES = ("registry", "training", "server", "clients")
OF_DEVICES = ("train", "train-all", "multitask", "doubts", "sweep run", "sweep publish")


def command_at(path: tuple[str, ...]) -> TyperCommand:
    command = get_command(app)
    for name in path:
        assert isinstance(command, TyperGroup)
        command = command.commands[name]
    assert isinstance(command, TyperCommand)
    return command


def test_version_matches_the_distribution() -> None:
    assert nunatak("--version").stdout == f"nunatak {version('nunatak')}\n"


def test_no_arguments_show_the_help() -> None:
    shown = nunatak().stdout + nunatak("--help").stdout

    assert shown.count("Usage: nunatak") == 2


@pytest.mark.parametrize("path", list(command_paths()), ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUNATAK_API_KEYS_FILE", "keys.json")
    helped = nunatak(*path, "--help")

    assert helped.exit_code == 0
    example = helped.stdout.partition(f"Example:  nunatak {' '.join(path)}")[2].splitlines()[0]
    # Only read, not run: an option or an argument that the command lacks is an error.
    command_at(path).make_context(path[-1], shlex.split(re.split("[>|]", example)[0]))
    _usage, purpose, *_ = (line.strip() for line in helped.stdout.splitlines() if line.strip())
    assert purpose.endswith(".")


@pytest.mark.parametrize("path", list(command_paths()), ids=" ".join)
def test_the_help_of_every_command_can_be_read_in_80_columns(path: tuple[str, ...]) -> None:
    command = command_at(path)
    options = [it for each in command.params for it in (*each.opts, *each.secondary_opts)]

    helped = CliRunner().invoke(app, [*path, "--help"], env=WIDE | {"COLUMNS": "80"}).stdout

    shown = {it.strip(",") for it in helped.split()}
    assert [it for it in options if it.startswith("--") and it not in shown] == []
    assert [it for it in shown if it.endswith("…")] == []
    # An option that is given or not takes no value; Typer itself makes `--help`.
    assert helped.count("<bool>") == 1


def test_a_paragraph_of_help_is_broken_where_the_terminal_ends() -> None:
    helped = nunatak("policy", "check", "--help").stdout

    assert "would have caught. With --data, judges labelled rows by the whole policy," in helped


def test_the_commands_that_show_progress_are_those_that_the_page_lists() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    sentence = page.partition("## Progress\n")[2].partition("Results go")[0]
    found = set[str]()
    for path in command_paths():
        options = {it for param in command_at(path).params for it in param.opts}
        if "--quiet" in options:
            assert "--json" in options, path
            found.add(" ".join(path))

    assert found == set(re.findall("`([^`]+)`", sentence))


def test_only_commands_that_read_a_version_take_its_backbone() -> None:
    free = {
        " ".join(path)
        for path in command_paths()
        for it in command_at(path).params
        if isinstance(it, TyperOption) and (it.help or "").endswith("Absent: 'minilm'.")
    }

    assert free == {"train", "adopt", "multitask", "doubts", "savings", "task import"}


def test_groups_explain_themselves_with_an_example() -> None:
    for path in ((), ("task",)):
        assert "Example:  nunatak" in nunatak(*path, "--help").stdout


@pytest.fixture(scope="module")
def without_extras() -> list[str]:
    """Return the end of commands in a process without the libraries of the extras."""
    asked = (
        f"train --task a --data {ROOT / 'examples/decisions/tickets.csv'} --epochs 3",
        "serve --port 1",
        "task list --registry postgresql://u@host/x?blobs=/tmp/none",
        "train --help",
    )
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(\n"
        "    ['numpy', 'torch', 'pydantic_settings', 'psycopg']))\n"
        "from typer.testing import CliRunner\nfrom nunatak_cli.main import app\n"
        f"for asked in {asked}:\n"
        "    ran = CliRunner().invoke(app, asked.split())\n"
        "    print(ran.exit_code, repr(ran.stdout), ran.stderr[:21].strip())"
    )
    return ran(sys.executable, "-c", code).splitlines()


def test_help_of_train_lists_all_settings_without_its_extra(without_extras: list[str]) -> None:
    assert "--learning-rate" in without_extras[-1]
    assert "tapt.learning_rate" in without_extras[-1]


def test_a_setting_without_its_extra_is_a_missing_extra_and_no_typing_error(
    without_extras: list[str],
) -> None:
    assert without_extras[:-1] == 3 * ["1 '' error [missing_extra]"]


@pytest.mark.parametrize(
    "interrupted",
    [
        (
            "class Interrupted:\n"
            "    def find_spec(self, *_):\n"
            "        with contextlib.suppress(KeyboardInterrupt):\n"
            "            signal.raise_signal(signal.SIGINT)\n"
            "sys.meta_path.insert(0, Interrupted())\n"
        ),
        "import typer.main as it; it.get_command = lambda _: signal.raise_signal(signal.SIGINT)\n",
    ],
    ids=["imports", "options"],
)
def test_an_interrupt_before_the_command_ends_it_with_a_line_and_no_traceback(
    interrupted: str,
) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = scripts["scripts"]["nunatak"].split(":")
    imports = f"from {module} import {name} as run\nimport contextlib, signal, sys\n"
    # A shell lets what it starts in the background ignore the signal.
    imports += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"

    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", f"{imports}{interrupted}run()"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{INTERRUPTED}\n")


@pytest.mark.parametrize(("given", "expected"), [("", "10000"), ("7", "7")])
def test_waiting_threads_of_torch_let_other_programs_have_the_cores(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", given)
    if not given:
        monkeypatch.delenv("GOMP_SPINCOUNT")

    nunatak("cache", "show")

    assert os.environ["GOMP_SPINCOUNT"] == expected


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("tarin", "train"),
        ("init new --with tune", "'--with': 'tune' is not one of"),
        ("train --task a --data b --threads 0", "'--threads': expected at least 1"),
        ("train --task a", "Missing option '--data'"),
        ("train --data a", "Missing option '--task'"),
        *((f"{it} --device gpu", "'cpu', 'cuda'") for it in OF_DEVICES),
    ],
)
def test_misspelt_command_is_a_usage_error(typed: str, told: str) -> None:
    misspelt = nunatak(*typed.split())

    assert misspelt.exit_code == 2
    assert told in misspelt.stderr


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("nunatak ev", ["evaluate"]), ("nunatak predict --on-long ", ["windows", "refuse", "cut"])],
)
def test_shells_complete_commands_and_values(typed: str, completed: list[str]) -> None:
    asked = {
        "_NUNATAK_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }

    found = CliRunner().invoke(app, [], prog_name="nunatak", env=asked)

    assert found.stdout.split() == completed


@pytest.mark.parametrize("command", [("cache", "show", "--json"), ("train", "--quiet")])
def test_no_bars_of_the_hub_stand_in_silent_or_json_output(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")

    nunatak(*command)

    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_the_committed_page_is_up_to_date() -> None:
    assert with_settings(PAGE) == PAGE, "run `make configuration`"


def test_what_is_written_by_hand_stays() -> None:
    page = with_settings(f"above\n{BEGIN}gone{END}\nbelow\n")

    assert page.startswith(f"above\n{BEGIN}\n\n## ")
    assert page.endswith(f" |\n\n{END}\nbelow\n")


def test_every_section_begins_at_a_setting() -> None:
    assert set(SECTIONS) <= set(ServerSettings.model_fields)


def test_every_option_of_serve_that_is_a_setting_stands_next_to_it() -> None:
    assert "| `NUNATAK_MAX_INPUTS` | `--max-inputs` | `64` |" in PAGE
    assert "| `NUNATAK_PINS` | `--pins` |" in PAGE
    assert "| `NUNATAK_GRACE_S` | `--grace-s` | `30` |" in PAGE


def test_every_variable_that_the_sources_name_is_on_the_page() -> None:
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            for name in re.findall(r"(?<!_)NUNATAK_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8")):
                assert f"`{name}`" in PAGE, f"{path.relative_to(ROOT)}: {name}"
