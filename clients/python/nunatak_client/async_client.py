"""The asyncio client; the build makes the blocking client from this file."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Self, Unpack
from weakref import WeakKeyDictionary

import httpcore
import httpx

from nunatak_client import calls
from nunatak_client.calls import (
    AnswerT,
    Call,
    Inputs,
    Parts,
    PredictOptions,
    task_target,
    wire_inputs,
)
from nunatak_client.errors import (
    ConnectionFailedError,
    InvalidInputError,
    InvalidRequestError,
    UnavailableError,
)
from nunatak_client.replies import DecidedQuestion, FanOut, Prediction, Reply, TaskResult, read_line
from nunatak_client.transport import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    MAX_AT_ONCE,
    PIECE_BYTES,
    Attempts,
    Connections,
    Lines,
    RetryPolicy,
    VerdictExchange,
    failure_of,
    key_headers,
    seconds,
    server_url,
    tls_context,
    without_proxy,
)
from nunatak_contract import wire
from nunatak_contract.enums import CandidateRole
from nunatak_contract.memory import MemoryReport
from nunatak_contract.questions import JsonText
from nunatak_contract.requests import Input


class AsyncClient:
    """Talks to one server. Several coroutines can share a client, which keeps connections open.

    Each event loop and each forked process gets connections of its own. Every method may raise any
    `NunatakClientError`.

    Args:
        url: Address of the server.
        api_key: The API key. Absent: the value of `NUNATAK_API_KEY`, if set.
        timeout_s: Seconds to wait for an answer, or for each part of a stream, if the call sets no
            deadline.
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
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        address, headers = server_url(url), key_headers(api_key)
        self._timeout_s = seconds("timeout_s", timeout_s)
        # Shared, because reading the certificates takes long.
        trusted = tls_context(address)
        self._connections = Connections(
            lambda: httpx.AsyncClient(
                base_url=address,
                headers=headers,
                timeout=self._timeout_s,
                transport=transport,
                verify=trusted,
                mounts=without_proxy(address),
            ),
            can_repeat=transport is None,
            loop=asyncio.get_running_loop,
        )
        self._places = WeakKeyDictionary[httpx.AsyncClient, asyncio.Semaphore]()
        self._policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy(retries=retries)
        self._trusted = trusted
        self._sleep, self._clock = sleep, clock

    async def predict(
        self, task: str, inputs: Inputs, **options: Unpack[PredictOptions]
    ) -> Prediction:
        """Ask one task about one input or a list of inputs.

        Args:
            task: `name`, `name@alias` or `name/3`.
            inputs: A text, a pair of texts as a tuple, a `Question`, a `Query`, or a list of these.
            top_k: Labels, documents or answers per input. Absent: all labels or documents, one
                answer.
            function_to_apply: `softmax`, `sigmoid` or `none`. Absent: by the task's kind.
            parameters: Further options, for tasks that do not classify whole texts.
            deadline_s: Seconds for the whole call, with further attempts.
            routing_key: Requests of one key get one version while a canary runs.
        """
        return await self._run(calls.predict(task, inputs, **options))

    async def predict_many(
        self, inputs: Inputs, tasks: Sequence[str], **options: Unpack[PredictOptions]
    ) -> FanOut:
        """Ask several tasks about the same inputs; a task that fails does not fail the others."""
        call = calls.predict_many(wire_inputs(inputs), calls.named_tasks(tasks), **options)
        return await self._run(call)

    async def predict_all(
        self, inputs: Iterable[Input], tasks: Sequence[str], **options: Unpack[PredictOptions]
    ) -> AsyncGenerator[tuple[list[Input], FanOut]]:
        """Ask several tasks about any number of inputs, in order.

        The inputs are divided into requests that the server accepts, one after the other. Yields
        the inputs of each request with their answers. An input that some of the tasks refuse comes
        alone, with their errors. `deadline_s` is of each request.

        Raises:
            NunatakClientError: all tasks refuse an input; all inputs before are answered, and
                `position` is its place.
        """
        parts, tasks = Parts(inputs), calls.named_tasks(tasks)
        while part := parts.take():
            try:
                answer = await self.predict_many(part, tasks, **options)
            except (InvalidInputError, InvalidRequestError) as error:
                parts.refuse(part, error)
            else:
                place = parts.accept(part, answer.refused)
                if place is not None:
                    yield part, answer.placed(place)

    async def stream(
        self, inputs: Inputs, tasks: Sequence[str], **options: Unpack[PredictOptions]
    ) -> AsyncGenerator[TaskResult]:
        """Ask several tasks about the same inputs, and yield each task's result on arrival.

        Closing the iterator discards results that have not arrived. Further attempts are made only
        before the first result.
        """
        # Read once, because an iterator has its items only once.
        sent, tasks = wire_inputs(inputs), calls.named_tasks(tasks)
        call = calls.stream(sent, tasks, **options)
        attempts = Attempts(self._policy, deadline_s=call.deadline_s, clock=self._clock)
        while True:
            try:
                async with self._send(call, attempts) as response:
                    if response.is_success:
                        answered, lines = list[str](), Lines()
                        async for part in response.aiter_bytes():
                            attempts.check_time(response, has_lines=True)
                            for line in lines.received(part):
                                result = read_line(line, num_inputs=sent.num_inputs)
                                answered.append(result.reference)
                                yield result
                        calls.check_whole(tasks, answered)
                        return
                    reply = await self._read(response, attempts)
            except (httpx.RequestError, httpx.InvalidURL) as error:
                delay_s = attempts.after_failure(error)
            else:
                delay_s = attempts.after_reply(reply)
                if delay_s is None:
                    call.answer(reply)
            await self._sleep(delay_s)

    async def judge(
        self,
        policy: str,
        inputs: str | Sequence[str] | None = None,
        *,
        messages: calls.Messages | None = None,
        deadline_s: float | None = None,
    ) -> wire.PolicyVerdict:
        """Ask for the decision of a policy about texts or messages; an error is a block.

        Args:
            policy: its name.
            inputs: a text, or a list of texts, which are judged each by itself.
            messages: in place of inputs, the messages of a call to a language model, as dicts.
                They are judged as a whole; a mask gives them back in `messages` of the verdict.
            deadline_s: Seconds for the whole call, with further attempts.
        """
        call = calls.judge(policy, inputs, messages=messages, deadline_s=deadline_s)
        return await self._run(call)

    async def judge_stream(
        self, policy: str, chunks: AsyncIterable[str]
    ) -> AsyncGenerator[wire.StreamEvent]:
        """Judge a text while it arrives; the last event has the final verdict.

        Show the texts of all events, one after the other. Events are read after each chunk, also an
        empty one, and after the last. If this method raises an error, treat the rest of the text as
        blocked. `timeout_s` is the time for each event after the last chunk. There are no further
        attempts and no proxies.
        """
        http = self._connections.open()
        url, timeout_s = http.base_url, self._timeout_s
        exchange = VerdictExchange(url, http.headers, policy)
        try:
            network = await self._connect(url)
            try:
                async for data in _parts_of_request(exchange, chunks):
                    is_sent = await _is_sent(network, data, timeout_s)
                    while not exchange.is_over and network.get_extra_info("is_readable"):
                        for event in exchange.received(await network.read(PIECE_BYTES, timeout_s)):
                            yield event
                    if exchange.is_over or not is_sent:
                        break
                while not exchange.is_over:
                    for event in exchange.received(await network.read(PIECE_BYTES, timeout_s)):
                        yield event
            finally:
                await network.aclose()
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise failure_of(error, url) from error

    async def embed(
        self, model: str, texts: Sequence[str], *, deadline_s: float | None = None
    ) -> tuple[tuple[float, ...], ...]:
        """Return a vector of length one for each text, by the backbone `model` of the server."""
        return await self._run(calls.embed(model, texts, deadline_s=deadline_s))

    async def decide(
        self,
        state: JsonText,
        questions: calls.Questions,
        *,
        model: str = "nunatak",
        deadline_s: float | None = None,
    ) -> dict[str, DecidedQuestion]:
        """Ask typed questions about a text; if one has no answer, the whole call fails.

        Args:
            state: a text, or JSON that is read as text.
            questions: each by a name of yours, as System One writes it: `type`, `instructions` and
                `criteria`.
            model: `nunatak`, or the backbone that answers questions without a card.
            deadline_s: Seconds for the whole call, with further attempts.
        """
        call = calls.decide(state, questions, model=model, deadline_s=deadline_s)
        return await self._run(call)

    async def tasks(self) -> tuple[wire.TaskSummary, ...]:
        """List the tasks of the server's registry."""
        return (await self._run(calls.show("/v1/tasks", wire.TaskListing))).tasks

    async def task(self, reference: str) -> wire.TaskDetail:
        """Describe a task and the version that `reference` means."""
        path, query = task_target(reference)
        return await self._run(calls.show(path, wire.TaskDetail, **query))

    async def history(self, task: str) -> wire.TaskHistory:
        """List the moves of a task's aliases and the changes of their candidates, oldest first."""
        return await self._run(calls.show(f"{calls.task_path(task)}/history", wire.TaskHistory))

    async def policies(self) -> tuple[wire.PolicyDetail, ...]:
        """List the policies that this client may ask, each with its rules."""
        return (await self._run(calls.show("/v1/policies", wire.PolicyListing))).policies

    async def promote(
        self, task: str, alias: str, version: int, expected_version: int | None = None
    ) -> wire.AliasChange:
        """Point `alias` at `version`, which the server loads and probes first.

        Raises:
            ConflictError: the alias does not point to `expected_version` (0: it must not exist
                yet).
        """
        path, kind = calls.alias_path(task, alias), wire.AliasChange
        return await self._run(calls.change("PUT", path, kind, expected_version, version=version))

    async def rollback(
        self, task: str, alias: str, expected_version: int | None = None
    ) -> wire.AliasChange:
        """Point `alias` back at the previous version."""
        path = f"{calls.alias_path(task, alias)}/rollback"
        return await self._run(calls.change("POST", path, wire.AliasChange, expected_version))

    async def set_canary(
        self,
        task: str,
        version: int,
        share: float,
        *,
        alias: str = "prod",
        expected_version: int | None = None,
    ) -> wire.CandidateChange:
        """Let `version`, once loaded and probed, answer a share of the alias's requests.

        Raises:
            ConflictError: the canary is not `expected_version` (0: there must be none).
        """
        place = (task, alias, CandidateRole.CANARY)
        return await self._run(calls.set_candidate(place, version, share, expected_version))

    async def set_shadow(
        self,
        task: str,
        version: int,
        share: float = 1.0,
        *,
        alias: str = "prod",
        expected_version: int | None = None,
    ) -> wire.CandidateChange:
        """Run `version` unseen on a share of the alias's requests, to compare it."""
        place = (task, alias, CandidateRole.SHADOW)
        return await self._run(calls.set_candidate(place, version, share, expected_version))

    async def end_candidate(
        self,
        task: str,
        role: CandidateRole,
        *,
        alias: str = "prod",
        expected_version: int | None = None,
    ) -> wire.CandidateChange:
        """End the canary or the shadow of an alias."""
        path = f"{calls.alias_path(task, alias, role)}/end"
        return await self._run(calls.change("POST", path, wire.CandidateChange, expected_version))

    async def shadow_report(self, task: str, *, alias: str = "prod") -> wire.ShadowReport:
        """Report the results of an alias's shadow on this server."""
        path = f"{calls.task_path(task)}/shadow"
        return await self._run(calls.show(path, wire.ShadowReport, alias=alias))

    async def preload(self, reference: str) -> wire.ResidencyReport:
        """Load a task version into memory and check it."""
        return await self._run(calls.hold(reference, "preload", wire.ResidencyReport))

    async def pin(self, reference: str) -> wire.ResidencyReport:
        """Load the version that `reference` means now, and keep it in memory."""
        return await self._run(calls.hold(reference, "pin", wire.ResidencyReport))

    async def unpin(self, reference: str) -> wire.Unpinning:
        """Let the server evict a task again, or the one version `name/3`."""
        return await self._run(calls.hold(reference, "unpin", wire.Unpinning))

    async def evict(self, reference: str) -> wire.Eviction:
        """Drop a task, or the one version `name/3`, from memory."""
        return await self._run(calls.hold(reference, "evict", wire.Eviction))

    async def memory(self) -> MemoryReport:
        """Report bytes in use, and the bytes of one full model per task."""
        return await self._run(calls.show("/v1/memory", MemoryReport))

    async def info(self) -> wire.ServerInfo:
        """Report the facts about the server."""
        return await self._run(calls.show("/info", wire.ServerInfo))

    async def replicas(self) -> wire.ReplicaListing:
        """List the processes that serve the registry, with the load of each."""
        return await self._run(calls.show("/v1/replicas", wire.ReplicaListing))

    async def is_ready(self) -> bool:
        """Whether the server answers predictions now. One attempt only."""
        try:
            ask = Call(method="GET", path="/readyz", read=lambda _: True)
            return await self._run(ask, RetryPolicy(retries=0))
        except (ConnectionFailedError, UnavailableError):
            return False

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._connections.here().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _send(
        self, call: Call[AnswerT], attempts: Attempts
    ) -> AbstractAsyncContextManager[httpx.Response]:
        return self._connections.open().stream(
            call.method,
            call.path,
            params=call.query or None,
            content=call.content,
            headers={**attempts.headers(), **call.headers},
            timeout=attempts.timeout_s(self._timeout_s),
        )

    async def _read(self, response: httpx.Response, attempts: Attempts) -> Reply:
        content = bytearray()
        async for part in response.aiter_bytes():
            attempts.check_time(response)
            content += part
        return Reply(status=response.status_code, headers=response.headers, content=bytes(content))

    async def _connect(self, url: httpx.URL) -> httpcore.AsyncNetworkStream:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        backend: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()  # pyrefly: ignore[bad-assignment] - a conditional import there
        network = await backend.connect_tcp(url.host, port, self._timeout_s)
        if url.scheme == "http":
            return network
        return await network.start_tls(self._trusted, url.host, self._timeout_s)

    @asynccontextmanager
    async def _place(self, attempts: Attempts) -> AsyncGenerator[None]:
        """Wait until fewer than `MAX_AT_ONCE` calls are sent, or the attempt has no more time."""
        places = self._places.setdefault(self._connections.open(), asyncio.Semaphore(MAX_AT_ONCE))
        is_taken = False
        with suppress(TimeoutError):
            async with asyncio.timeout(attempts.timeout_s(self._timeout_s)):
                is_taken = await places.acquire()
        try:
            yield
        finally:
            if is_taken:
                places.release()

    async def _run(self, call: Call[AnswerT], policy: RetryPolicy | None = None) -> AnswerT:
        attempts = Attempts(policy or self._policy, deadline_s=call.deadline_s, clock=self._clock)
        while True:
            try:
                async with self._place(attempts), self._send(call, attempts) as response:
                    reply = await self._read(response, attempts)
            except (httpx.RequestError, httpx.InvalidURL) as error:
                delay_s = attempts.after_failure(error)
            else:
                delay_s = attempts.after_reply(reply)
                if delay_s is None:
                    return call.answer(reply)
            await self._sleep(delay_s)


async def _parts_of_request(
    exchange: VerdictExchange, chunks: AsyncIterable[str]
) -> AsyncGenerator[bytes]:
    yield exchange.head
    async for chunk in chunks:
        yield exchange.chunk(chunk)
    yield exchange.end()


async def _is_sent(network: httpcore.AsyncNetworkStream, data: bytes, timeout_s: float) -> bool:
    """Send bytes; False if the server has closed. A server that refuses may do that at any time."""
    try:
        await network.write(data, timeout_s)
    except httpcore.WriteError:
        return False
    return True
