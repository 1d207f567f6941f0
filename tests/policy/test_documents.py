"""The documents are true."""

import re
import shlex
from functools import cache
from http import HTTPStatus
from importlib.metadata import metadata as distribution_metadata
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from doubles.access import access_by_route
from nunatak_cli.main import app
from nunatak_contract import problems
from release.recording import KEPT_SPACE, PICTURE, commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"
GROUPS = (
    *("backbone", "cache", "key", "loadtest", "memory", "policy", "question", "registry", "sweep"),
    "task",
)
INTERCHANGE = (ROOT / "docs" / "interchange.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SOURCES = (
    *("clients", "contract", "exchange", "model", "registry", "server", "tests", "training"),
    "versions",
)
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
OVER_HTTP = {
    code
    for code, reason in problems.REASONS.items()
    if reason.status is not HTTPStatus.INTERNAL_SERVER_ERROR
}
EXCHANGE = {
    code
    for file in (ROOT / "exchange").rglob("*.py")
    for code in re.findall(r'"(\w+)"', file.read_text())
    if code in problems.REASONS and code not in OVER_HTTP
}
DOUBLES = Path(__file__).parents[1] / "doubles"


def shell_lines(text: str) -> list[str]:
    """Commands of the fenced `sh` blocks, with continued lines joined and comments dropped."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


def documented_access() -> dict[tuple[str, str], str]:
    """The scope of each route, by verb and template, in the table of docs/http.md."""
    found = dict[tuple[str, str], str]()
    rows = re.findall(
        r"^\| (nothing|`\w+`(?:, all tasks)?) \| (`[A-Z]+ /.*) \|$", HTTP, re.MULTILINE
    )
    for needed, routes in rows:
        verb = ""
        for route in re.findall(r"`([^`]+)`", routes):
            named, _, template = route.rpartition(" ")
            verb = named or verb
            assert (verb, template) not in found, f"{verb} {template} stands there twice"
            found[verb, template] = needed.replace("`", "")
    return found


def real_access() -> dict[tuple[str, str], str]:
    """The scope of each route, by verb and template, in the server."""
    return {
        route: "nothing"
        if needed is None
        else f"{needed.scope}{', all tasks' if needed.spans_tasks else ''}"
        for route, needed in access_by_route().items()
    }


COMMANDS = shell_lines(README)


def test_the_readme_has_commands() -> None:
    assert "make demo" in COMMANDS
    assert "make test" in COMMANDS
    assert any(command.startswith("nunatak train") for command in COMMANDS)


@pytest.mark.parametrize("command", [it for it in COMMANDS if it.startswith("make ")])
def test_every_make_target_of_the_readme_exists(command: str) -> None:
    assert set(shlex.split(command)[1:]) <= MAKE_TARGETS


@pytest.mark.parametrize(
    "command",
    [
        it
        for page in (
            ROOT / "README.md",
            *ROOT.glob("docs/*.md"),
            *ROOT.glob("examples/*/README.md"),
        )
        for it in shell_lines(page.read_text(encoding="utf-8"))
        if it.startswith("nunatak ")
    ],
)
def test_every_option_of_the_documents_commands_exists(command: str) -> None:
    words = shlex.split(command)[1:]
    path = words[:2] if words[0] in GROUPS else words[:1]

    for option in (word for word in words if word.startswith("--")):
        assert option in help_of(*path)


@cache
def help_of(*path: str) -> str:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    return shown.output


@pytest.mark.parametrize("code", sorted(EXCHANGE))
def test_every_error_of_the_exchange_is_documented(code: str) -> None:
    assert f"`{code}`" in INTERCHANGE


def test_the_documents_say_the_status_of_every_error_code() -> None:
    rows = re.findall(r"^\| (\d{3})(?:,[^|]*)? \| (.*) \|$", HTTP, re.MULTILINE)
    said = {(code, int(status)) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}

    assert {(code, int(problems.REASONS[code].status)) for code in OVER_HTTP} <= said
    assert not [it for it in OVER_HTTP if sum(it == code for code, _ in said) > 1]


def test_the_documents_say_of_every_route_what_it_needs() -> None:
    assert documented_access() == real_access()


def test_lines_of_the_documents_are_at_most_120_characters_long() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if ROOT / "docs" / "results" not in page.parents:
            for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
                is_wrapped = line.startswith("|") or len(line) <= 120
                assert is_wrapped, f"{page.relative_to(ROOT)}:{number} has {len(line)}"


def test_the_readme_plays_its_own_commands() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    times = [float(it) for it in re.findall(r"opacity:0}([\d.]+)%", picture)]

    texts = [it.text or "" for it in ET.fromstring(picture).iter(f"{SVG}text")]  # noqa: S314 - our own
    assert f"]({PICTURE.relative_to(ROOT)})" in README
    lines = [it.replace(KEPT_SPACE, " ") for it in texts]
    assert [it[2:] for it in lines if it.startswith("$ ")] == commands(README)
    assert len(texts) == len(times)
    assert times == sorted(times)
    assert times[-1] < 95
    assert len(picture) < 150_000


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.relative_to(ROOT)} -> {target}"
            assert not anchor or anchor in anchors(place), f"{page.relative_to(ROOT)} -> #{anchor}"


def test_every_source_that_the_architecture_names_exists() -> None:
    sources = [it.as_posix() for folder in SOURCES for it in (ROOT / folder).rglob("*.py")]
    for page in (ROOT / "docs" / "architecture").glob("*.md"):
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
            assert any(it.endswith(f"/{name}") for it in sources), f"{page.name}: {name}"


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        ("00-overview", "*/nunatak_*"),
        ("00-overview", "clients/*/nunatak_*"),
        ("01-request", "server/nunatak_server/*"),
        ("02-mixed-forward", "model/nunatak_model/*"),
    ],
)
def test_the_architecture_names_every_module(page: str, folder: str) -> None:
    text = (ROOT / "docs" / "architecture" / f"{page}.md").read_text(encoding="utf-8")
    kinds = {"", ".py"}
    modules = {it.stem for it in ROOT.glob(folder) if it.suffix in kinds and it.name[0] != "_"}

    assert modules
    assert not [it for it in modules if not re.search(rf"\b{it}\b", text)]


def anchors(page: Path) -> set[str]:
    """The headings of a page in GitHub's form for links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", it.lower()).replace(" ", "-") for it in headings}


def test_the_documents_say_what_each_extra_is_for() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))

    assert described == set(distribution_metadata("nunatak").get_all("Provides-Extra") or ())


def test_every_code_of_the_troubleshooting_page_exists() -> None:
    named = {
        code
        for cell in re.findall(r"^\| ((?:\d{3} )?`[^|]*) \|", TROUBLESHOOTING, re.MULTILINE)
        for code in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", cell)
    }

    assert len(named) > 20
    assert named <= problems.REASONS.keys()


def test_releases_that_documents_were_tested_with_are_the_pinned_ones() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    quoted = [
        (package, release)
        for path in (ROOT / "docs").glob("*.md")
        for tested in re.findall(r"Tested with (?:.+\n)+", path.read_text(encoding="utf-8"))
        for package, release in re.findall(r"`([\w-]+)` (\d[\d.]*\d)", tested)
    ]

    assert {"openai", "jevcompat", "tritonclient"} <= {package for package, _ in quoted}
    known = [it for it in quoted if it[0] in pinned]
    assert [it for it in known if not f"{pinned[it[0]]}.".startswith(f"{it[1]}.")] == []


def test_the_index_of_the_doubles_names_every_file_once_in_order() -> None:
    index = (DOUBLES / "README.md").read_text(encoding="utf-8")

    named = re.findall(r"^\| `(\w+\.py)` \| \S.* \|$", index, flags=re.MULTILINE)

    assert named == sorted(path.name for path in DOUBLES.glob("*.py"))
