"""Laws of `import nunatak`: it is light, and says what is missing."""

import subprocess
import sys
from importlib.metadata import version

import pytest

import nunatak
import nunatak_client


def run(program: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_import_brings_the_client() -> None:
    assert nunatak.Client is nunatak_client.Client
    assert nunatak.AsyncClient is nunatak_client.AsyncClient
    assert nunatak.__version__ == version("nunatak")


@pytest.mark.parametrize(
    ("call", "module", "extra"),
    [
        ("train('tone', [], [])", "torch", "training"),
        ("doubts([], [])", "torch", "training"),
        ("load()", "torch", "server"),
    ],
)
def test_a_missing_extra_is_named(call: str, module: str, extra: str) -> None:
    printed = run(
        f"import sys\nsys.modules[{module!r}] = None\nimport nunatak\n"
        f"try:\n    nunatak.{call}\nexcept nunatak.NunatakError as error:\n"
        "    print(error.code, error)"
    )

    assert printed.startswith("missing_extra")
    assert f"pip install 'nunatak[{extra}]'" in printed
