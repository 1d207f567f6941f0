"""The package `nunatak-ops`, built once for all test runs, and importable while a test needs it.

Its operators are compared on drawn numbers.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

PACKAGE = "nunatak_ops"
SOURCES = Path(__file__).parents[2] / "kernels"
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DTYPES = st.sampled_from(list(TOLERANCES))


@contextmanager
def native_operators() -> Generator[None]:
    """Make the operators importable; skip the test where no C++ compiler can build them."""
    folder = _built()
    sys.modules.pop(PACKAGE, None)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        hide()


def hide() -> None:
    """Make the package look absent in this process, also where `make install` has built it."""
    sys.modules[PACKAGE] = None  # pyrefly: ignore[unsupported-operation] - the import system reads None


def _built() -> Path:
    """Return the folder with the build of these sources, which outlives the test run."""
    if shutil.which("g++") is None:
        pytest.skip("nunatak-ops needs g++ to be built")
    digest = hashlib.sha256(f"{sys.version} {os.getuid()}".encode())
    for pattern in ("*.py", "*.toml", "src/*", "nunatak_ops/*.py"):
        for path in sorted(SOURCES.glob(pattern)):
            digest.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"nunatak-ops-{digest.hexdigest()[:16]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            work = Path(name)
            shutil.copytree(
                SOURCES, work / "kernels", ignore=shutil.ignore_patterns("build", "*.egg-info")
            )
            _install(work / "kernels", work / "site")
            # A rename is atomic, so no other test process finds half a build.
            try:
                (work / "site").rename(folder)
            except OSError:
                if not folder.exists():
                    raise
    return folder


def _install(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own sources
    if done.returncode:
        raise RuntimeError(f"nunatak-ops cannot be built:\n{done.stdout}{done.stderr}")


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(seen: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(seen.float(), expected.float(), atol=tolerance, rtol=tolerance)
