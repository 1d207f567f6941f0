"""What a process imports at most, in a new interpreter: no library that it may never use."""

import subprocess
import sys

import pytest

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
AT_MOST: dict[str, tuple[str, set[str]]] = {
    "the client": ("import nunatak", HEAVY),
    "the registry": (
        "import nunatak_client, nunatak_registry, nunatak_cli.main",
        {*LIBRARIES_OF_MODELS, "fastapi"},
    ),
    "helps of commands": (COMMANDS.format(HELPS), HEAVY | OURS),
    "commands of a registry": (COMMANDS.format(OF_A_REGISTRY), LIBRARIES_OF_MODELS),
    "the predictor": ("import nunatak_server.local", {"fastapi", "starlette", "uvicorn"}),
    "the supervisor": (
        "import nunatak_server.processes.supervisor",
        {*LIBRARIES_OF_MODELS, "fastapi"},
    ),
    "settings and access of the server": (
        "import nunatak_server.configuration as it; from nunatak_server.access import keys, tokens",
        {*LIBRARIES_OF_MODELS, "nunatak_model", "fastapi", "uvicorn"},
    ),
    "a server without traces": (
        "import nunatak_server.processes.serving as it; assert it.find_tracing({}) is None",
        {*SLOW, "nunatak_server.telemetry.spans"},
    ),
    "training": ("import nunatak_training.train", SLOW),
}


@pytest.mark.parametrize("process", AT_MOST)
def test_a_process_imports_nothing_that_it_may_never_use(process: str) -> None:
    statement, unused = AT_MOST[process]
    code = f"import sys; {statement}; print(*sys.modules, sep='\\n', file=sys.stderr)"

    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    imported = set(done.stderr.split())
    assert "nunatak_contract" in imported
    assert imported & unused == set()
