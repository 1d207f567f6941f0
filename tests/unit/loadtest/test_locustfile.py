"""Laws of the locustfile, which changes the sockets of the process that imports it."""

import subprocess
import sys

import pytest

LATE_BUT_ROUNDED = """
from locust.stats import RequestStats
from nunatak_loadtest import locustfile as it
from nunatak_loadtest.report import Started
from nunatak_loadtest.scenarios import scenario_named

class Answer:
    status_code, headers, request_meta = 200, {}, {}
    def json(self): return {}
    def failure(self, code): raise AssertionError(code)
    def __enter__(self): return self
    def __exit__(self, *_): stats.log_request("POST", "x", self.request_meta["response_time"], 0)

now, stats = [0.0], RequestStats()
it.time.perf_counter = lambda: now[0]
it.RUN.scenario = scenario_named("single")
it.RUN.draws = it.Requests(it.RUN.scenario, ["x"], seed=1)
user = object.__new__(it.PredictUser)
user.due_s, user.headers = None, {}
class Session:
    def post(self, *_, **named):
        now[0] += took_s
        return Answer()
user.client = Session()
for took_s in (0.2, 0.2004, 0.204):
    user.ask()
started = Started.model_construct(scenario=it.RUN.scenario)
it.doubts_of = lambda *_: ()
it.LoadReport = lambda **named: named
report = it.build_report(started, stats, it.RUN.details, [])
assert set(stats.total.response_times) == {200}
assert report["attained_share"] == 1 / 3, report
"""
SLOW_TO_LOAD = """
from types import SimpleNamespace
from nunatak_loadtest import locustfile as it

shape = it.ScenarioShape()
shape.start_time -= 100
it.tasks_of = lambda *_: (("x",), ())
it.listening_pid = lambda _: None
it._watch = it.Started = lambda *_, **__: None
class Client:
    def __init__(self, *_): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def predict(self, *_, **__): pass
    def info(self): pass
it.Client = Client
it._prepare(SimpleNamespace(shape_class=shape, parsed_options=None, host=None, runner=None))
assert shape.get_run_time() < 50
"""


DEFAULTS = """
import argparse
from nunatak_loadtest.locustfile import add_options
parser = argparse.ArgumentParser()
add_options(parser)
assert None not in vars(parser.parse_args([])).values()
"""


CODES = {
    "the-objective-counts-times-that-nobody-rounded": LATE_BUT_ROUNDED,
    "the-loading-of-tasks-is-no-part-of-the-run": SLOW_TO_LOAD,
    "every-option-has-a-default-whose-type-the-web-page-reads": DEFAULTS,
}
EACH_IN_A_FORK = f"""
import os
import nunatak_loadtest.locustfile
for name, code in {CODES}.items():
    if (child := os.fork()) == 0:
        exec(code, {{}})
        os._exit(0)
    print(name, os.waitpid(child, 0)[1], flush=True)
"""
"""An import of Locust takes seconds. A child that fails ends the loop by its error."""


@pytest.fixture(scope="module")
def statuses() -> dict[str, str]:
    command = [sys.executable, "-c", EACH_IN_A_FORK]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own code
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", CODES)
def test_the_locustfile_keeps_its_word(name: str, statuses: dict[str, str]) -> None:
    assert statuses[name] == "0"
