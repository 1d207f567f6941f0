"""The simulated user: one request after another, without a pause.

The load is closed-loop: a slow server is asked less often. Read the latencies as those of this
many users, not as those of this many requests per second.

    NUNATAK_LOADTEST_JOB=job.json locust -f locustfile.py --host http://127.0.0.1:8080
"""

# Locust annotates its HTTP client in parts only.
# pyright: reportUnknownMemberType=false

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, TextIO, cast

from locust import FastHttpUser, LoadTestShape, constant, task
from locust.contrib.fasthttp import ResponseContextManager

from nunatak_client import FanOut, NunatakClientError, Prediction
from nunatak_client.calls import Call, PredictOptions, predict, predict_many
from nunatak_client.replies import Reply
from nunatak_client.results import Timings
from nunatak_client.transport import key_headers
from nunatak_loadtest.job import SAMPLES_VARIABLE, Job
from nunatak_loadtest.samples import Sample, printable
from nunatak_loadtest.scenario import Closed, Step
from nunatak_loadtest.traffic import Asking

HEADERS = {"accept": "application/json", "content-type": "application/json"}
JOB = Job.from_environment(os.environ)


class TaskUser(FastHttpUser):
    """Sends what the Python client would send, and checks answers as it does."""

    wait_time = constant(0)
    # Seeds differ between users, or all of them would send the same text at the same time.
    numbers: ClassVar[Iterator[int]] = itertools.count()

    def on_start(self) -> None:
        """Begin a draw of one's own, and open the file of samples."""
        seed = JOB.scenario.seed * 1_000_003 + next(self.numbers)
        self._asking = Asking(JOB.scenario, JOB.tasks, seed=seed)
        self._headers = HEADERS | key_headers(None)
        self._resources = ExitStack()
        self._samples: TextIO | None = None
        samples = os.environ.get(SAMPLES_VARIABLE)
        if samples:
            # Line by line, so that a run that is cut short keeps what it has measured.
            stream = Path(samples).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - on_stop
            self._samples = self._resources.enter_context(stream)

    def on_stop(self) -> None:
        """Close the file of samples."""
        self._resources.close()

    @task
    def ask(self) -> None:
        """Ask about one text: one task by its own route, several in one request."""
        tasks, text = self._asking.draw()
        if len(tasks) == 1:
            sample = self._send(predict(tasks[0], text, PredictOptions()), tasks, name=tasks[0])
        else:
            call = predict_many(text, tasks, PredictOptions())
            sample = self._send(call, tasks, name=f"{len(tasks)} tasks")
        if self._samples is not None:
            self._samples.write(sample.model_dump_json(exclude_none=True) + "\n")

    def _send(
        self, call: Call[Prediction] | Call[FanOut], tasks: Sequence[str], *, name: str
    ) -> Sample:
        started_s = time.monotonic()
        with self.client.request(
            call.method,
            call.path,
            name=printable(name),
            # FastHttpUser annotates text, and sends bytes as they are.
            data=call.content,  # pyright: ignore[reportArgumentType]
            headers=self._headers,
            params=dict(call.query),
            catch_response=True,
        ) as response:
            response_ms = (time.monotonic() - started_s) * 1000
            error, timings = None, Timings()
            try:
                timings = read_timings(call, response)
            except NunatakClientError as refusal:
                error = refusal.code
                response.failure(printable(error))
        return Sample(
            tasks=tuple(tasks),
            started_s=started_s,
            response_ms=response_ms,
            error=error,
            **timings.model_dump(),
        )


def read_timings(
    call: Call[Prediction] | Call[FanOut], response: ResponseContextManager
) -> Timings:
    """Read locust's response as the client reads its own; no answer at all has status 0."""
    received = cast("Mapping[str, str]", response.headers or {})
    headers = {name.lower(): value for name, value in received.items()}
    answer = call.answer(
        Reply(status=response.status_code or 0, headers=headers, content=response.content or b"")
    )
    if isinstance(answer, FanOut):
        for result in answer.results:
            result.require()
    return answer.timings


def users_at(steps: Sequence[Step], run_time_s: float) -> int | None:
    """How many users there shall be at this time; `None` when the steps are over."""
    end_s = 0
    for step in steps:
        end_s += step.seconds
        if run_time_s < end_s:
            return step.users
    return None


if isinstance(JOB.scenario.arrivals, Closed) and JOB.scenario.arrivals.steps:
    STEPS = JOB.scenario.arrivals.steps

    # Locust follows a shape as soon as a class of it exists, so there is one only for steps.
    class Steps(LoadTestShape):
        """The users of the scenario's steps; one button starts them in the web page too."""

        def tick(self) -> tuple[int, float] | None:
            """How many users there shall be now, and how many may come per second."""
            users = users_at(STEPS, self.get_run_time())
            return None if users is None else (users, float(max(users, 1)))
