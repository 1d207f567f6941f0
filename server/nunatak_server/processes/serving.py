"""Serving: one process, one event loop and one engine thread, until a signal or a fatal error."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
import uvicorn
from prometheus_client import disable_created_metrics

from nunatak_contract.errors import invalid_settings
from nunatak_registry import Registry
from nunatak_server.access.audit import AUDIT_THREADS
from nunatak_server.access.keys import check_exposure, read_keys
from nunatak_server.app import Application, create_app
from nunatak_server.catalog.catalog import THREADS
from nunatak_server.configuration import Configuration, Origin, unread_variables
from nunatak_server.engine.backbones import Backbones, load_on_own_thread, load_serving_backbones
from nunatak_server.errors import START_AGAIN, EngineFailedError
from nunatak_server.http.protocol import BoundedProtocol, bounded_protocol
from nunatak_server.processes.supervisor import ReplicaPlace, bound
from nunatak_server.processes.template import Template
from nunatak_server.residency.residency import LOAD_THREADS
from nunatak_server.runtime import Runtime
from nunatak_server.settings import ServerSettings
from nunatak_server.telemetry import logs

if TYPE_CHECKING:
    from nunatak_server.telemetry.spans import SpanTracing

OBJECTS_PER_REQUEST: Final = 500
"""Allowance of objects for a waiting request, which has about 215 for one text and one task."""
MIN_OBJECTS, MAX_OBJECTS = 100_000, 5_000_000
"""Bounds of the threshold: a short queue must not cause frequent collections, and a long queue must
not let cycles fill the memory."""
GENERATIONS: Final = (4, 4)
"""Collections of one generation for each collection of the next."""
SWITCH_INTERVAL_S: Final = 0.0005
"""Longest wait of a thread for the interpreter's lock, if another thread computes. A forward pass
takes the lock a few hundred times, and waits each time while the event loop works."""


def tune_interpreter(*, max_requests: int) -> None:
    """Freeze the loaded objects, make garbage collection rare, and let threads take turns often.

    All threads wait during a collection, the engine as well: by default 0.2 s every few seconds if
    the queue is full. An answered request leaves no cycles, so the threshold is above the objects
    of a queue.
    """
    gc.collect()
    # torch and the backbone have hundreds of thousands of objects, which all stay alive.
    gc.freeze()
    num_objects = min(MAX_OBJECTS, max(MIN_OBJECTS, max_requests * OBJECTS_PER_REQUEST))
    gc.set_threshold(num_objects, *GENERATIONS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


RESERVED_FILES: Final = 192
"""Open files besides the connections: ports, registry, loads, libraries and logs. A server at work
has about 20, and each read of a store may take some more."""
MAX_CONNECTIONS, MAX_BACKLOG = 16_384, 2_048
"""Most open connections, and most that wait at a port: these may all open within one turn of the
event loop, before the first one over the limit ends."""
MIN_FILES: Final = 512


def connection_limits() -> tuple[int, int]:
    useful = RESERVED_FILES + MAX_CONNECTIONS + MAX_BACKLOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # An infinite limit is negative.
    files, most = (it if it >= 0 else useful for it in (soft, hard))
    if files < min(most, useful):
        files = min(most, useful)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files < MIN_FILES:
        raise invalid_settings(
            f"this process may open {files} files, and a server needs {MIN_FILES}; raise "
            "the hard limit, for example by `ulimit -n`, or by LimitNOFILE= of a systemd unit"
        )
    backlog = min(MAX_BACKLOG, files // 4)
    return min(MAX_CONNECTIONS, files - RESERVED_FILES - backlog), backlog


ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Each of these variables turns tracing on."""
DISABLED: Final = "OTEL_SDK_DISABLED"


def find_tracing(environment: Mapping[str, str] = os.environ) -> "SpanTracing | None":
    """Return tracing to the collector that the environment names, or None without one."""
    is_disabled = environment.get(DISABLED, "").strip().lower() == "true"
    if is_disabled or not any(environment.get(name) for name in ENDPOINTS):
        return None
    try:
        from nunatak_server.telemetry.spans import otlp_tracing  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise invalid_settings(
            f"{ENDPOINTS[0]} asks for traces, but the module {error.name!r} is missing; "
            "install 'nunatak[tracing]' or unset the variable"
        ) from error
    return otlp_tracing()


TICK_S: Final = 0.05
LAST_CONNECTIONS_S: Final = 0.5
"""The end of the drain delay, in which no new connection is accepted."""
WAITING: Final = (THREADS, LOAD_THREADS, AUDIT_THREADS)
"""Begin the names of the threads that may wait for the registry or a disk without end."""
LAST_WORDS_S: Final = 2
"""Extra time after the grace time, to log the open connections before uvicorn closes them."""

logger = logging.getLogger(__name__)


def serve(
    settings: ServerSettings,
    *,
    announce: Callable[[str], None] | None = None,
    origins: Mapping[str, Origin] | None = None,
    create_registry: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then answer requests in flight within the grace time.

    The backbone loads before the port opens. SIGTERM ends the process; after SIGINT this returns.
    `announce` gets the address once the server accepts requests; the default prints a line.
    """
    logs.log_everything(settings.log_format)
    prepare(settings)
    bound(settings.host, settings.port).close()
    with Registry.open(settings.registry, create=create_registry) as registry:
        backbones = load_on_own_thread(settings)
        serve_backbone(
            settings,
            backbones,
            registry,
            announce=announce or partial(logs.print_address, log_format=settings.log_format),
            origins=origins or {},
        )


def serve_template(
    settings: ServerSettings,
    place: ReplicaPlace,
    *,
    origins: Mapping[str, Origin],
    create_registry: bool = False,
) -> int:
    """Load the backbone, and serve from several processes until a signal; return the status."""
    # A handler without a thread, because a process with threads cannot fork.
    logs.log_everything(settings.log_format, logging.StreamHandler)
    prepare(settings)
    torch.set_num_threads(1)
    backbones = load_serving_backbones(settings)
    backbone = backbones.default
    if backbone.device.type != "cpu":
        raise invalid_settings(
            "processes: several processes share a backbone only on the CPU, and this one "
            f"is on {backbone.device}; set NUNATAK_DEVICE=cpu, or run one process for each device"
        )

    def serve_replica(
        own: ServerSettings,
        sockets: list[socket.socket],
        announce: Callable[[str], None],
        stays: Callable[[], bool],
    ) -> None:
        logs.log_everything(own.log_format)
        with Registry.open(own.registry, create=create_registry) as registry:
            serve_backbone(
                own,
                backbones,
                registry,
                announce=announce,
                origins={
                    name: origin if getattr(own, name) == getattr(settings, name) else Origin.FLEET
                    for name, origin in origins.items()
                },
                sockets=sockets,
                stays=stays,
            )

    return Template(settings, place, serve=serve_replica).run()


def prepare(settings: ServerSettings) -> None:
    # The threads of the tokenizer would take cores from the forward pass, for a few short texts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    check_exposure(settings)
    if settings.api_keys_file is not None:
        read_keys(settings.api_keys_file)  # A wrong file is refused before a backbone loads.
    connection_limits()
    # Without this setting, each counter has a second line in every scrape.
    disable_created_metrics()
    logs.leave_out_places()


def serve_backbone(
    settings: ServerSettings,
    backbones: Backbones,
    registry: Registry,
    *,
    announce: Callable[[str], None],
    origins: Mapping[str, Origin],
    sockets: list[socket.socket] | None = None,
    stays: Callable[[], bool] = lambda: False,
) -> None:
    """Serve until a signal, on `sockets` or else on the address of the settings; as `serve`.

    `stays` says whether to serve on after the signal, while others are not ready yet.
    """
    settings = settings.for_device(backbones.default.device.type)
    # Started here, because uvicorn hides errors of the start of the application.
    settings.batch_limits(longest_row_tokens=backbones.max_tokens)
    server = DrainingServer(
        settings,
        backbones=backbones,
        registry=registry,
        announce=partial(begin, max_requests=settings.max_queued_requests, announce=announce),
        tracing=find_tracing(),
        stays=stays,
    )
    shown = Configuration(settings=settings, origins=origins).shown()
    given = {name: f"{value} ({it})" for name, value, it in shown if it is not Origin.DEFAULT}
    logger.info("configuration", extra=logs.fields(**given))
    if unread := unread_variables(os.environ):
        logger.warning("these variables are not settings of the server: %s", ", ".join(unread))
    try:
        server.run(sockets)
    except KeyboardInterrupt:
        return
    if server.failure is not None:
        raise server.failure


class DrainingServer(uvicorn.Server):
    """A uvicorn server that announces its address, and drains before it ends."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        backbones: Backbones,
        registry: Registry,
        announce: Callable[[str], None],
        tracing: "SpanTracing | None" = None,
        stays: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stays = stays
        self.failure: EngineFailedError | None = None
        self._delay_is_over = False
        self._announce = announce
        self._drain_delay_s = settings.drain_delay_s
        self._grace_s = settings.grace_s
        self._app = create_app(
            settings, backbones=backbones, registry=registry, on_fatal=self._fail, tracing=tracing
        )
        super().__init__(_config(self._app, settings))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.failure is None:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer 503 at /readyz from the signal on; a second signal ends the drain delay."""
        runtime = self._runtime
        has_delay = bool(self._drain_delay_s) or self._stays()
        if runtime is not None and has_delay and not self.should_exit:
            runtime.announce_drain()
        elif runtime is not None:
            runtime.begin_drain()
        elif not self.started:
            # uvicorn would wait for the end of the start, which may wait for the registry.
            logs.write_log()
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._delay_is_over |= self.should_exit
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Serve until the signal, and then for the drain delay, so that load balancers notice."""
        await super().main_loop()
        runtime = self._runtime
        if runtime is None or self.failure is not None:
            return
        ends_at = time.monotonic() + self._drain_delay_s
        # Polled, because a signal handler does not wake the event loop.
        while not self._delay_is_over and self.failure is None:
            now = time.monotonic()
            if self._stays():
                ends_at = now + self._drain_delay_s
            elif now >= ends_at:
                break
            elif now > ends_at - LAST_CONNECTIONS_S:
                # A new connection would close before its first request is read.
                await self._close_port()
            await asyncio.sleep(TICK_S)
        runtime.begin_drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Write all log lines before the signal ends the process without running code."""
        with contextlib.suppress(KeyboardInterrupt), super().capture_signals():
            try:
                yield
            finally:
                logs.write_log()
        # SIGINT ends nothing, and such a thread would keep the process.
        is_kept = any(it.name.startswith(WAITING) for it in threading.enumerate())
        if is_kept and threading.current_thread() is threading.main_thread():
            os._exit(0 if self.failure is None else START_AGAIN)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for requests in flight for the grace time, then end the open connections."""
        await self._close_port()
        giving_up = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)
        try:
            await super().shutdown(sockets)
        finally:
            giving_up.cancel()

    async def _close_port(self) -> None:
        """Close the port, and take the connections that wait there, which a close would reset."""
        loop, waiting = asyncio.get_running_loop(), list[socket.socket]()
        for server in self.servers:
            for listener in server.sockets:
                with (
                    socket.socket(fileno=os.dup(listener.fileno())) as port,
                    contextlib.suppress(OSError),
                ):
                    for _ in range(self.config.backlog):
                        waiting.append(port.accept()[0])
            server.close()
        protocol: Any = self.config.http_protocol_class
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for connection in waiting:
            await loop.connect_accepted_socket(make, connection)
        if waiting:
            await asyncio.sleep(TICK_S)  # Their first requests get an answer, also a refusal.

    def _give_up(self) -> None:
        connections = list(self.server_state.connections)
        if connections:
            logger.warning("the grace time is over: %d connections are ended", len(connections))
        for connection in connections:
            if isinstance(connection, BoundedProtocol):
                connection.end()

    @property
    def _runtime(self) -> Runtime | None:
        return getattr(self._app.state, "runtime", None)

    def _fail(self, error: EngineFailedError) -> None:
        self.failure = error
        self.should_exit = True


def _config(app: Application, settings: ServerSettings) -> uvicorn.Config:
    max_connections, backlog = connection_limits()
    protocol = bounded_protocol(
        receive_timeout_s=settings.receive_timeout_s,
        refusal_of=app.refusal_of,
        is_leaving=app.state.is_leaving,
        answer_unreadable=app.answer_unreadable,
        max_connections=max_connections,
    )
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol,
        backlog=backlog,
        ws="none",
        lifespan="on",
        access_log=False,
        # The server does not use the headers of a proxy about its client.
        proxy_headers=False,
        # `log_everything` has configured the log of the process.
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.grace_s + LAST_WORDS_S,
    )


def begin(address: str, *, max_requests: int, announce: Callable[[str], None]) -> None:
    tune_interpreter(max_requests=max_requests)
    announce(address)
