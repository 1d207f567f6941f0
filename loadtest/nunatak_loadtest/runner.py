"""Runs one load test: prepares the server, lets locust loose in a process of its own, reports.

Locust patches the standard library for gevent as soon as it is imported, so it is never imported
here.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nunatak_client import Client
from nunatak_loadtest.errors import LoadGeneratorError
from nunatak_loadtest.memory import MemorySampler, listening_pid
from nunatak_loadtest.report import LoadReport, build_report
from nunatak_loadtest.samples import read_samples
from nunatak_loadtest.settings import LoadTestSettings

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# Requests that are under way when the time is up may still be answered, this long.
STOP_TIMEOUT_S = 10
# Locust starts, stops and writes within this time beside the run itself.
MARGIN_S = 60


def run(settings: LoadTestSettings, *, pid: int | None = None) -> LoadReport:
    """Load the server for `duration_s` and report.

    The tasks are preloaded first: what is measured is a server at work, not one at start.

    Args:
        settings: What to do.
        pid: The server process, to watch its memory; on this machine it is found by its port.

    Raises:
        NunatakClientError: the server or a task is not there; nothing was measured.
        LoadTestError: the settings or locust failed.
    """
    settings.user.texts()  # a broken file must not cost a run
    if find_spec("locust") is None:
        raise LoadGeneratorError("locust is missing; run: pip install 'nunatak[loadtest]'")
    with Client(settings.server) as client, TemporaryDirectory(prefix="nunatak-loadtest-") as name:
        for task in settings.user.tasks:
            client.preload(task)
        server = client.info()
        samples = Path(name) / "samples.jsonl"
        with ExitStack() as stack:
            watched = pid if pid is not None else listening_pid(settings.server)
            sampler = (
                stack.enter_context(MemorySampler(watched, interval_s=settings.memory_interval_s))
                if watched is not None
                else None
            )
            _run_locust(settings, folder=Path(name), samples=samples)
        return build_report(
            settings,
            read_samples(samples),
            server=server,
            memory=client.memory(),
            watched=sampler.samples if sampler is not None else (),
        )


def _run_locust(settings: LoadTestSettings, *, folder: Path, samples: Path) -> None:
    user = settings.user.model_copy(update={"samples": samples})
    # Locust also reads options from LOCUST_* variables and from files in its folder.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")
    }
    try:
        finished = subprocess.run(  # noqa: S603 - our own interpreter and file; no shell
            _command(settings),
            env=inherited | user.to_environment(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=settings.duration_s + STOP_TIMEOUT_S + MARGIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadGeneratorError("locust did not stop in time; the run does not count") from error
    if finished.returncode != 0:
        lines = finished.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {finished.returncode}"
        raise LoadGeneratorError(f"locust failed: {reason}")


def _command(settings: LoadTestSettings) -> Sequence[str]:
    return (
        sys.executable,
        *("-m", "locust"),
        *("--locustfile", str(LOCUSTFILE)),
        *("--host", settings.server),
        *("--users", str(settings.users)),
        *("--spawn-rate", str(settings.users)),
        *("--run-time", f"{settings.duration_s}s"),
        *("--stop-timeout", str(STOP_TIMEOUT_S)),
        *("--exit-code-on-error", "0"),
        *("--loglevel", "ERROR"),
        "--headless",
        "--only-summary",
    )
