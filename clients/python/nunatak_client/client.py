"""The blocking client; generated from `async_client.py`.

Change `async_client.py` instead, and run `make client`.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import update_wrapper
from types import TracebackType
from typing import Generic, ParamSpec, Self, Unpack

import httpx

from nunatak_client import calls
from nunatak_client.calls import AnswerT, Call
from nunatak_client.errors import ConnectionFailedError, InvalidRequestError, UnavailableError
from nunatak_client.payloads import Inputs, Parts, PredictOptions
from nunatak_client.replies import FanOut, TaskResult
from nunatak_client.transport import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    Attempts,
    Connections,
    RetryPolicy,
    key_headers,
    server_url,
    tls_context,
    to_reply,
    without_proxy,
)
from nunatak_contract.inputs import Input

P = ParamSpec("P")


class Method(Generic[P, AnswerT]):
    """A call as a method of the client, with the arguments and the docstring of the call."""

    def __init__(self, make: Callable[P, Call[AnswerT]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, client: "Client | None", owner: type["Client"]) -> Callable[P, AnswerT]:
        def ask(*arguments: P.args, **options: P.kwargs) -> AnswerT:
            if client is None:
                raise TypeError(f"{self._make.__name__} is a method of a client")
            call = self._make(*arguments, **options)
            return client._run(call)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        return update_wrapper(ask, self._make)


class Client:
    """Talks to one server. Several threads can share a client, which keeps connections open.

    Each forked process gets connections of its own. Every method may raise any
    `NunatakClientError`.

    Args:
        url: Address of the server.
        api_key: The API key. Absent: the value of `NUNATAK_API_KEY`, if set.
        timeout_s: Seconds to wait for an answer if the call sets no deadline.
        retries: Further attempts after a refused connection, or after a 429 or 503 with
            `Retry-After`; a `RetryPolicy` also sets the delays.
        transport: Replaces the network.
        sleep: Waits between attempts.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int | RetryPolicy = 2,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        address, headers = server_url(url), key_headers(api_key)
        # Shared, because reading the certificates takes long.
        trusted = tls_context() if transport is None else True
        self._connections = Connections(
            lambda: httpx.Client(
                base_url=address,
                headers=headers,
                timeout=timeout_s,
                transport=transport,
                verify=trusted,
                mounts=without_proxy(address),
            ),
            can_repeat=transport is None,
        )
        self._timeout_s = timeout_s
        self._policy = RetryPolicy(retries=retries) if isinstance(retries, int) else retries
        self._sleep = sleep
        self._clock = clock

    predict = Method(calls.predict)
    predict_many = Method(calls.predict_many)
    tasks = Method(calls.tasks)
    task = Method(calls.task)
    promote = Method(calls.promote)
    rollback = Method(calls.rollback)
    set_canary = Method(calls.set_canary)
    set_shadow = Method(calls.set_shadow)
    end_candidate = Method(calls.end_candidate)
    shadow_report = Method(calls.shadow_report)
    preload = Method(calls.preload)
    pin = Method(calls.pin)
    unpin = Method(calls.unpin)
    evict = Method(calls.evict)
    memory = Method(calls.memory)
    info = Method(calls.info)

    def predict_all(
        self,
        inputs: Iterable[Input],
        tasks: Sequence[str],
        **options: Unpack[PredictOptions],
    ) -> Generator[tuple[list[Input], FanOut]]:
        """Ask several tasks about any number of inputs, in order.

        The inputs are divided into requests that the server accepts, one after the other. Yields
        the inputs of each request with their answers. `deadline_s` is of each request.

        Raises:
            InvalidRequestError: the server refuses an input; all inputs before are answered.
        """
        parts = Parts(inputs)
        while part := parts.take():
            try:
                answer = self.predict_many(part, tasks, **options)
            except InvalidRequestError as error:
                if not parts.divide(part, code=error.code):
                    raise
            else:
                parts.accept()
                yield part, answer

    def stream(
        self,
        inputs: Inputs,
        tasks: Sequence[str],
        **options: Unpack[PredictOptions],
    ) -> Generator[TaskResult]:
        """Ask several tasks about the same inputs, and yield each task's result on arrival.

        Closing the iterator discards results that have not arrived. Further attempts are made only
        before the first result.
        """
        stream = calls.stream(inputs, tasks, **options)
        attempts = Attempts(self._policy, deadline_s=stream.call.deadline_s, clock=self._clock)
        while True:
            try:
                with self._connections.here().stream(
                    stream.call.method,
                    stream.call.path,
                    content=stream.call.content,
                    headers={**attempts.headers(), **stream.call.headers},
                    timeout=attempts.timeout_s(self._timeout_s),
                ) as response:
                    if response.is_success:
                        answered = list[str]()
                        for line in response.iter_lines():
                            result = stream.read(line)
                            answered.append(result.reference)
                            yield result
                        stream.check_whole(answered)
                        return
                    response.read()
            except httpx.RequestError as error:
                delay_s = attempts.after_failure(error)
            else:
                reply = to_reply(response)
                retry_s = attempts.after_reply(reply)
                if retry_s is None:
                    stream.refuse(reply)
                delay_s = retry_s
            self._sleep(delay_s)

    def is_ready(self) -> bool:
        """Whether the server answers predictions now. One attempt only."""
        try:
            return self._run(calls.readiness(), RetryPolicy(retries=0))
        except (ConnectionFailedError, UnavailableError):
            return False

    def close(self) -> None:
        """Close the connections of this process."""
        self._connections.here().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, call: Call[AnswerT], policy: RetryPolicy | None = None) -> AnswerT:
        attempts = Attempts(policy or self._policy, deadline_s=call.deadline_s, clock=self._clock)
        while True:
            try:
                response = self._connections.here().request(
                    call.method,
                    call.path,
                    params=call.query or None,
                    content=call.content,
                    headers={**attempts.headers(), **call.headers},
                    timeout=attempts.timeout_s(self._timeout_s),
                )
            except httpx.RequestError as error:
                delay_s = attempts.after_failure(error)
            else:
                reply = to_reply(response)
                retry_s = attempts.after_reply(reply)
                if retry_s is None:
                    return call.answer(reply)
                delay_s = retry_s
            self._sleep(delay_s)
