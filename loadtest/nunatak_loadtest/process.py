"""Runs a load test as a process of its own: Locust without its web page."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from nunatak_client import Client
from nunatak_contract.errors import NunatakError, invalid_settings
from nunatak_loadtest.report import LoadReport
from nunatak_loadtest.scenarios import Scenario, scenario_named
from nunatak_loadtest.traffic import read_texts, tasks_of

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
STOP_TIMEOUT_S = 60
"""Seconds that the requests on their way get at the end."""


def run_locust(  # noqa: PLR0913 - the options of the command
    name: str,
    *,
    server: str,
    tasks: Sequence[str] = (),
    users: int | None = None,
    rate_per_s: float | None = None,
    seconds: float | None = None,
    text_file: Path | None = None,
    seed: int | None = None,
    processes: int = 1,
    out: Path | None = None,
) -> LoadReport:
    """Run a scenario and return its report; `out` also gets Locust's page and CSV files.

    `tasks` are references, or policies in a scenario of verdicts; none: all tasks. `users` wait for
    answers, in place of the scenario's arrivals; `rate_per_s` is of an open loop. `out` must not
    hold `run-NAME.json` or its neighbours yet.
    """
    scenario = scenario_named(name).changed(users=users, rate_per_s=rate_per_s, seconds=seconds)
    if text_file is not None:
        read_texts(text_file)
    kept = None if out is None else _unwritten(out, scenario)
    with Client(server) as client:
        chosen, _ = tasks_of(client, scenario, tasks)
    given = {
        "--scenario": name,
        "--host": server,
        "--tasks": ",".join(chosen) if tasks else None,
        "--waiting-users": users,
        "--rate": rate_per_s,
        "--seconds": seconds,
        "--text-file": None if text_file is None else text_file.resolve(),
        "--seed": seed,
        "--processes": processes if processes > 1 else None,
        "--stop-timeout": STOP_TIMEOUT_S,
        "--csv": kept and kept.with_suffix(""),
        "--html": kept and kept.with_suffix(".html"),
    }
    with TemporaryDirectory() as folder:
        # Locust reads settings from the folder it starts in, so it starts in an empty one.
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless"]
        command += ["--only-summary", "--loglevel", "WARNING", "--report", str(report)]
        command += [str(it) for pair in given.items() if pair[1] is not None for it in pair]
        ran = subprocess.run(  # noqa: S603 - our own file; no shell
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if not report.exists():
            said = [it for it in ran.stderr.splitlines() if "rror" in it] or ["nothing"]
            raise NunatakError("loadtest_failed", exit_code=ran.returncode, said=said[-1])
        text = report.read_text(encoding="utf-8")
    if kept is not None:
        kept.write_text(text, encoding="utf-8")
    return LoadReport.model_validate_json(text)


def _unwritten(folder: Path, scenario: Scenario) -> Path:
    path = folder.resolve() / f"run-{scenario.name}.json"
    if path.exists():
        raise invalid_settings(
            f"{path} holds an earlier run, which is never overwritten; name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return path
