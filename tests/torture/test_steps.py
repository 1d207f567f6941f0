"""A kill, or an error, at any step of any operation leaves the state before or after it."""

import errno

import pytest

from torture.fork_server import ForkServer
from torture.steps import ERRORS, Bench, sampled, strike_every_step, undurable
from torture.tally import Tally, many

KILL = 0
"""In the place of the number of an error."""


@pytest.fixture(scope="module")
def bench(faulty_forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(faulty_forks, tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize(
    ("error", "num_cases"),
    [(KILL, 12), *((error, 4) for error in ERRORS)],
    ids=lambda it: errno.errorcode.get(it, "kill"),
)
def test_a_kill_or_an_error_at_any_step_leaves_the_state_before_or_after(
    bench: Bench, error: int, num_cases: int
) -> None:
    forms = (False,) if error == KILL else (False, True)
    every = [case for it in forms for case in bench.cases([error], persistent=it)]
    cases = sampled(every, many(num_cases, len(every)), seed=21)

    tally = strike_every_step(bench, Tally(campaign="steps", seed=21), cases)

    assert tally.is_clean, (tally.line(), tally.problems)
    assert tally.injected == len(cases) >= num_cases


@pytest.mark.parametrize("name", ["publish", "publish-again"])
def test_a_version_is_named_only_after_its_bytes_are_durable(bench: Bench, name: str) -> None:
    trace = bench.trace(name)

    assert undurable(trace) == []
    assert ("sync", "blobs/sha256") in trace
