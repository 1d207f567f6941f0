"""Laws of `nunatak task canary` and `nunatak task shadow`."""

import getpass

import pytest

from doubles.terminals import nunatak
from nunatak_registry import Registry

VERSION = ("intent/3", "--share", "0.1", "--unprobed")


@pytest.mark.parametrize("role", ["canary", "shadow"])
def test_a_candidate_is_set_and_ended(
    registry: Registry, place: tuple[str, str], role: str
) -> None:
    ran = nunatak("task", role, *VERSION, *place)

    assert (ran.exit_code, ran.stdout) == (
        0,
        f"intent@prod has {role} version 3 on 10.00% of its requests\n",
    )
    again = nunatak("task", role, *VERSION, *place)
    assert again.stdout.endswith("on 10.00% of its requests already; nothing changed\n")
    (found,) = registry.task("intent").candidates
    assert (found.role, found.version, found.share) == (role, 3, 0.1)

    ended = nunatak("task", role, "intent", "--end", "--expect", "3", "--json", *place).json()

    assert (ended["kind"], ended["version"]) == ("end", 3)
    assert registry.task("intent").candidates == ()


def test_a_shadow_runs_on_all_requests_by_default(
    registry: Registry, place: tuple[str, str]
) -> None:
    nunatak("task", "shadow", "intent/1", "--unprobed", *place)

    assert registry.task("intent").candidates[0].share == 1.0


def test_the_history_shows_what_ran_next_to_the_alias(
    registry: Registry, place: tuple[str, str]
) -> None:
    nunatak("task", "canary", *VERSION, *place)
    registry.promote("intent", "prod", 3)

    shown = nunatak("task", "history", "intent", *place).stdout.splitlines()[1:]

    assert [" ".join(line.split()[2:-1]) for line in shown] == [
        "prod promote - 1",
        "prod promote 1 2",
        "prod canary - 3 (10.00%)",
        "prod promote 2 3",
        "prod canary end 3 -",
    ]
    assert {line.split()[-1] for line in shown} == {getpass.getuser()}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("canary", "intent/3"), "invalid_option"),
        (("canary", "intent", "--share", "0.1"), "invalid_option"),
        (("canary", "intent", "--end", "--share", "0.1"), "invalid_option"),
        (("canary", "intent/3", "--end"), "invalid_option"),
        (("shadow", "intent"), "invalid_option"),
        (("shadow", "intent", "--report"), "invalid_option"),
        (("canary", "intent", "--end"), "candidate_not_found"),
        (("canary", *VERSION, "--expect", "1"), "candidate_conflict"),
        (("canary", "intent/2", "--share", "1", "--unprobed"), "invalid_candidate"),
    ],
)
def test_what_makes_no_sense_is_refused(
    place: tuple[str, str], arguments: tuple[str, ...], code: str
) -> None:
    nunatak("task", *arguments, *place).assert_refused(code)
