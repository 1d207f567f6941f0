"""The house stays small: ceilings that only go down."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import house
import pytest

MAX_LINES_OF_A_FILE = 500
CEILINGS = {
    # package: most lines, most files
    "nunatak_versions": (403, 2),
    "nunatak_exchange": (3754, 14),
    "nunatak_cli": (7105, 33),
    "nunatak": (602, 3),
    "nunatak_client": (2150, 6),
    "nunatak_cluster": (622, 6),
    "nunatak_contract": (4350, 20),
    "nunatak_rows": (868, 5),
    "nunatak_loadtest": (1047, 6),
    "nunatak_model": (9048, 44),
    "nunatak_ops": (12, 1),
    "nunatak_registry": (4180, 20),
    "nunatak_server": (21241, 89),
    "nunatak_training": (8760, 40),
}
"""They only go down. A change that raises one needs a record in docs/decisions that names what the
lines buy."""
MAX_LINES, MAX_FILES = 64_142, 289
CEILINGS_BESIDE = {"benchmarks": 8_493, "tests": 71_275}
"""Most lines of the folders that judge the product, under the same rule."""
MIN_CODE_SHARE = 0.525
MAX_FILES_OF_ONE_PREDICT = 45
MAX_SHARED_CLASS_NAMES = 3
LIBRARIES_OF_MODELS = {"torch", "transformers"}
HEAVY = {*LIBRARIES_OF_MODELS, "numpy", "sklearn", "datasets", "fastapi", "uvicorn", "sqlalchemy"}
OURS = {"httpx", "nunatak_registry", "nunatak_model"}
SLOW = {"torch._dynamo", "sympy", "transformers", "huggingface_hub", "scipy.stats"}
COMMANDS = (
    "import sys; from typer.testing import CliRunner; from nunatak_cli.main import app; "
    "[CliRunner().invoke(app, it.split()) for it in {}]"
)
HELPS = [f"{it}--help" for it in ("", "train ", "sweep ", "serve ", "task ")]
OF_A_REGISTRY = [f"task {it} --registry /nowhere" for it in ("list", "promote a 1", "history a")]
OF_A_SUPERVISOR = ("processes.supervisor", "configuration", "access.keys", "access.tokens")
AT_MOST: dict[str, tuple[str, set[str]]] = {
    "the helps of commands": (COMMANDS.format(HELPS), HEAVY | OURS),
    "the client": ("import nunatak", HEAVY),
    "the client and commands of a registry": (
        f"import nunatak_client, nunatak_registry; {COMMANDS.format(OF_A_REGISTRY)}",
        {*LIBRARIES_OF_MODELS, "fastapi"},
    ),
    "the supervisor, settings and access of the server": (
        f"import {', '.join(f'nunatak_server.{it}' for it in OF_A_SUPERVISOR)}",
        {*LIBRARIES_OF_MODELS, "nunatak_model", "fastapi", "uvicorn"},
    ),
    "the predictor and training": (
        "import nunatak_server.local, nunatak_training.train",
        {*SLOW, "fastapi", "starlette", "uvicorn"},
    ),
    "a server without traces": (
        "import nunatak_server.processes.serving as it; assert it.find_tracing({}) is None",
        {*SLOW, "nunatak_server.telemetry.spans"},
    ),
}
"""What a process runs, and what it may never import. One process runs all of them in this order,
and each is judged by all that is imported until its end: alone, it would import no more."""


def test_no_product_file_is_longer_than_five_hundred_lines() -> None:
    files = [file for own in house.product_files().values() for file in own]

    assert files
    assert [it for it in files if house.num_lines([it]) > MAX_LINES_OF_A_FILE] == []


@pytest.mark.parametrize("package", house.product_files())
def test_no_package_grows_above_its_ceiling(package: str) -> None:
    files = house.product_files()[package]
    max_lines, max_files = CEILINGS[package]

    assert house.num_lines(files) <= max_lines
    assert len(files) <= max_files


def test_the_house_grows_above_no_ceiling_and_most_of_it_is_code() -> None:
    files = [file for own in house.product_files().values() for file in own]
    num_lines = house.num_lines(files)

    assert num_lines <= MAX_LINES
    assert len(files) <= MAX_FILES
    assert sum(map(house.code_lines, files)) >= MIN_CODE_SHARE * num_lines


@pytest.mark.parametrize("folder", CEILINGS_BESIDE)
def test_what_judges_the_house_grows_above_no_ceiling(folder: str) -> None:
    num_lines = house.num_lines((house.ROOT / folder).rglob("*.py"))

    assert 0 < num_lines <= CEILINGS_BESIDE[folder]


@pytest.mark.parametrize("folder", ["benchmarks", "demo", "release"])
def test_programs_of_a_checkout_import_nothing_of_the_tests(folder: str) -> None:
    files = list((house.ROOT / folder).rglob("*.py"))
    inner = {it.stem for it in (house.ROOT / "tests").iterdir()}
    imports = [
        (file, node.module or "")
        for file in files
        for node in house.nodes_of(file)
        if isinstance(node, ast.ImportFrom)
    ]

    assert imports
    assert [it for it in imports if it[1].split(".", 1)[0] in inner] == []


def test_one_warm_predict_crosses_few_files() -> None:
    crossed = house.files_of_one_predict()

    assert house.ROOT / "model" / "nunatak_model" / "forward.py" in crossed
    assert len(crossed) <= MAX_FILES_OF_ONE_PREDICT, sorted(map(Path.as_posix, crossed))


def test_few_class_names_stand_in_two_packages() -> None:
    assert len(house.shared_class_names()) <= MAX_SHARED_CLASS_NAMES


def imported_by(statements: Iterable[str]) -> list[set[str]]:
    """The modules that a new process has imported after each of the statements."""
    shown = "print(*sys.modules, file=sys.stderr)"
    code = "\n".join(["import sys", *(f"{it}\n{shown}" for it in statements)])
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return [set(line.split()) for line in done.stderr.splitlines()]


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    found = imported_by(statement for statement, _ in AT_MOST.values())
    return dict(zip(AT_MOST, found, strict=True))


@pytest.mark.parametrize("process", AT_MOST)
def test_a_process_imports_nothing_that_it_may_never_use(
    process: str, imported: dict[str, set[str]]
) -> None:
    assert "nunatak_contract" in imported[process]
    assert imported[process] & AT_MOST[process][1] == set()
