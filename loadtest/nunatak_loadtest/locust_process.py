"""Locust in a process of its own, without and with its web page.

Locust patches the standard library for gevent as soon as it is imported, so it is never imported
here.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nunatak_loadtest.errors import LoadGeneratorError
from nunatak_loadtest.job import JOB_VARIABLE, SAMPLES_VARIABLE, Job
from nunatak_loadtest.samples import Sample, read_samples
from nunatak_loadtest.scenario import Closed

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# Requests that are under way when the time is up may still be answered, this long.
STOP_TIMEOUT_S = 10
# Locust starts, stops and writes within this time beside the run itself.
MARGIN_S = 60


def run_locust(job: Job, *, html: Path | None = None) -> list[Sample]:
    """Let the users of a closed loop ask for as long as the scenario says.

    Raises:
        LoadGeneratorError: locust is missing, or did not run to its end.
    """
    _require_locust()
    users, seconds = _extent(job)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
    options = (
        *("--users", str(users)),
        *("--spawn-rate", str(users)),
        *("--run-time", f"{seconds}s"),
        *("--stop-timeout", str(STOP_TIMEOUT_S)),
        *("--exit-code-on-error", "0"),
        *("--loglevel", "ERROR"),
        *(() if html is None else ("--html", str(html.resolve()))),
        "--headless",
        "--only-summary",
    )
    with TemporaryDirectory(prefix="nunatak-loadtest-") as name:
        folder = Path(name)
        environment = _environment(job, folder)
        environment[SAMPLES_VARIABLE] = str(folder / "samples.jsonl")
        _finish(_command(job, options), environment, folder, timeout_s=seconds)
        return read_samples(folder / "samples.jsonl")


def serve_locust(job: Job, *, port: int) -> None:
    """Serve locust's web page for this job until it is interrupted.

    Raises:
        LoadGeneratorError: locust is missing, or ended with an error.
    """
    _require_locust()
    users, _ = _extent(job)
    options = (
        *("--web-host", "127.0.0.1", "--web-port", str(port)),
        *("--users", str(users), "--spawn-rate", str(users)),
    )
    with TemporaryDirectory(prefix="nunatak-loadtest-") as name:
        environment = _environment(job, Path(name))
        finished = subprocess.run(  # noqa: S603 - our own interpreter and file; no shell
            _command(job, options), env=environment, cwd=name, check=False
        )
    if finished.returncode not in (0, 1):  # 1: some requests failed, which its page shows
        raise LoadGeneratorError(f"locust ended with code {finished.returncode}")


def _extent(job: Job) -> tuple[int, int]:
    """Most users at once, and whole seconds."""
    seconds = max(1, round(job.scenario.duration_s))
    match job.scenario.arrivals:
        case Closed(users=users, steps=()):
            return users, seconds
        case Closed(steps=steps):
            return max(step.users for step in steps), sum(step.seconds for step in steps)
        case _:
            return 1, seconds


def _require_locust() -> None:
    if find_spec("locust") is None:
        raise LoadGeneratorError("locust is missing; run: pip install 'nunatak[loadtest]'")


def _environment(job: Job, folder: Path) -> dict[str, str]:
    file = folder / "job.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    # Locust also reads options from LOCUST_* variables and from files in its folder.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")
    }
    return inherited | {JOB_VARIABLE: str(file)}


def _finish(
    command: Sequence[str], environment: dict[str, str], folder: Path, *, timeout_s: float
) -> None:
    try:
        finished = subprocess.run(  # noqa: S603 - our own interpreter and file; no shell
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout_s + STOP_TIMEOUT_S + MARGIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadGeneratorError("locust did not stop in time; the run does not count") from error
    if finished.returncode != 0:
        lines = finished.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {finished.returncode}"
        raise LoadGeneratorError(f"locust failed: {reason}")


def _command(job: Job, options: Sequence[str]) -> Sequence[str]:
    return (
        sys.executable,
        *("-m", "locust"),
        *("--locustfile", str(LOCUSTFILE)),
        *("--host", job.server),
        *options,
    )
