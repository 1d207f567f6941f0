"""The tasks of a server that a load test can ask: those that read single texts."""

from collections.abc import Sequence

from nunatak_client import Client
from nunatak_contract.enums import HeadKind, Reads
from nunatak_contract.errors import NunatakError
from nunatak_loadtest.scenarios import Asks, Scenario


def tasks_of(
    client: Client, scenario: Scenario, given: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks to ask (or policies for verdicts), and those that read no single text."""
    if scenario.asks is Asks.VERDICT:
        chosen, left_out = list(given), list[str]()
    elif given:
        chosen, left_out = _checked(client, given), []
    else:
        needs = {it.name: needed(it.head, it.reads) for it in client.tasks()}
        chosen = sorted(name for name, other in needs.items() if other is None)
        left_out = sorted(name for name, other in needs.items() if other is not None)
    if not chosen or len(set(chosen)) != len(chosen):
        wanted = "policies that are given" if scenario.asks is Asks.VERDICT else "tasks"
        raise NunatakError(
            "invalid_settings",
            problem=f"scenario {scenario.name!r} asks {wanted}, at least one and each once, but "
            f"there are: {', '.join(chosen) or 'none'}",
        )
    return tuple(chosen[: scenario.most_tasks]), tuple(left_out)


def _checked(client: Client, given: Sequence[str]) -> list[str]:
    for name in given:
        task = client.task(name)
        other = needed(task.head, task.reads)
        if other is not None:
            raise NunatakError(
                "invalid_settings",
                problem=f"task {name!r} reads {other}, but a load test sends single texts; leave "
                "the task out",
            )
    return list(given)


def needed(head: str, reads: Reads | None) -> str | None:
    """Return what a task reads in place of a single text; None if a single text is enough."""
    match head, reads:
        case HeadKind.QUESTION_ANSWERING, _:
            return "a question with its context"
        case HeadKind.RANKING, _:
            return "a query with its documents"
        case _, Reads.PAIR:
            return "two texts"
        case _:
            return None
