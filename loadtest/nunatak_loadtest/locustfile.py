"""The simulated user: one request after another, each for one task, without a pause.

The load is closed-loop: a slow server is asked less often. Read the latencies as those of this
many users, not as those of this many requests per second.

    NUNATAK_LOADTEST_TASKS=tone,intent locust -f locustfile.py --host http://127.0.0.1:8080
"""

# Locust annotates its HTTP client in parts only.
# pyright: reportUnknownMemberType=false

import itertools
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import ClassVar, TextIO, cast

from locust import FastHttpUser, constant, task
from locust.contrib.fasthttp import ResponseContextManager

from nunatak_client import NunatakClientError, Prediction
from nunatak_client.calls import Call, PredictOptions, predict
from nunatak_client.replies import Reply
from nunatak_client.transport import key_headers
from nunatak_loadtest.samples import Sample
from nunatak_loadtest.settings import UserSettings

HEADERS = {"accept": "application/json", "content-type": "application/json"}


class TaskUser(FastHttpUser):
    """Sends what the Python client would send, and checks answers as it does."""

    wait_time = constant(0)
    # Seeds differ between users, or all of them would send the same text at the same time.
    numbers: ClassVar[Iterator[int]] = itertools.count()

    def on_start(self) -> None:
        """Read the settings and open the file of samples."""
        settings = UserSettings.from_environment(os.environ)
        self._random = random.Random(settings.seed * 1_000_003 + next(self.numbers))  # noqa: S311 - not a secret
        self._headers = HEADERS | key_headers(None)
        self._tasks = settings.tasks
        self._texts = settings.texts()
        self._resources = ExitStack()
        self._samples: TextIO | None = None
        if settings.samples is not None:
            # Line by line, so that a run that is cut short keeps what it has measured.
            stream = settings.samples.open("a", encoding="utf-8", buffering=1)
            self._samples = self._resources.enter_context(stream)

    def on_stop(self) -> None:
        """Close the file of samples."""
        self._resources.close()

    @task
    def predict(self) -> None:
        """Ask one task about one text."""
        name = self._random.choice(self._tasks)
        call = predict(name, self._random.choice(self._texts), PredictOptions())
        started_s = time.monotonic()
        with self.client.request(
            call.method,
            call.path,
            name=name,
            # FastHttpUser annotates text, and sends bytes as they are.
            data=call.content,  # pyright: ignore[reportArgumentType]
            headers=self._headers,
            params=dict(call.query),
            catch_response=True,
        ) as response:
            response_ms = (time.monotonic() - started_s) * 1000
            sample = Sample(task=name, started_s=started_s, response_ms=response_ms)
            try:
                timings = read_answer(call, response).timings
            except NunatakClientError as error:
                response.failure(error.code)
                sample = sample.model_copy(update={"error": error.code})
            else:
                sample = sample.model_copy(update=timings.model_dump())
        if self._samples is not None:
            self._samples.write(sample.model_dump_json(exclude_none=True) + "\n")


def read_answer(call: Call[Prediction], response: ResponseContextManager) -> Prediction:
    """Read locust's response as the client reads its own; no answer at all has status 0."""
    received = cast("Mapping[str, str]", response.headers or {})
    headers = {name.lower(): value for name, value in received.items()}
    return call.answer(
        Reply(status=response.status_code or 0, headers=headers, content=response.content or b"")
    )
