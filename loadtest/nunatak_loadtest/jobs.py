"""From a scenario to the job of one run: its changes for this time, and the tasks of the server."""

from collections.abc import Sequence
from pathlib import Path

from nunatak_client import Client
from nunatak_loadtest.errors import InvalidSettingsError
from nunatak_loadtest.job import Job
from nunatak_loadtest.scenario import Closed, FileTexts, Poisson, Scenario


def changed_scenario(
    scenario: Scenario,
    *,
    users: int | None = None,
    rate_per_s: float | None = None,
    duration_s: float | None = None,
    text_file: Path | None = None,
) -> Scenario:
    """The scenario with what is given in place of its own.

    Raises:
        InvalidSettingsError: users and rate exclude each other.
    """
    if users is not None and rate_per_s is not None:
        raise InvalidSettingsError("give either users, who wait for answers, or a rate, not both")
    changes = dict[str, object]()
    if users is not None:
        changes["arrivals"] = Closed(users=users)
    if rate_per_s is not None:
        changes["arrivals"] = Poisson(rate_per_s=rate_per_s)
    if duration_s is not None:
        changes["duration_s"] = duration_s
    if text_file is not None:
        changes["texts"] = FileTexts(path=str(text_file.resolve()))
    return scenario.model_copy(update=changes)


def make_job(scenario: Scenario, *, server: str, tasks: Sequence[str] | None) -> Job:
    """The job of these tasks; of the server's own, in the order of their names, where none is.

    Raises:
        InvalidSettingsError: the server has fewer tasks than the scenario asks.
        NunatakClientError: the server is not there.
    """
    if not tasks:
        with Client(server) as client:
            tasks = sorted(summary.name for summary in client.tasks())
    wanted = scenario.num_tasks or len(tasks)
    if wanted > len(tasks) or not tasks:
        raise InvalidSettingsError(
            f"scenario {scenario.name!r} asks {max(wanted, 1)} tasks, there are {len(tasks)}; "
            "publish more, or ask fewer"
        )
    return Job.checked(server=server, tasks=tuple(tasks[:wanted]), scenario=scenario)
