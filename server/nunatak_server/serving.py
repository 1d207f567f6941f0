"""Garbage collection of a server: rare, for everybody waits while it runs, the engine too.

Python looks for cycles after so many more allocations of objects than deallocations: by default
700, and through all objects every few seconds under load, which takes 0.2 s with a full queue. An
answered request leaves no cycles. What does is a failure that holds its own traceback, or a
library.

Serving: one process, one event loop, one engine thread, until a signal or a fatal error.
"""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import FrameType
from typing import Final

import uvicorn
from prometheus_client import disable_created_metrics

from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.authenticators import check_exposure
from nunatak_server.app import Application, create_app
from nunatak_server.errors import EngineFailedError
from nunatak_server.http.protocol import BoundedProtocol, bounded_protocol
from nunatak_server.runtime import Runtime, load_serving_backbone
from nunatak_server.settings import Configuration, Origin, ServerSettings, unread_variables
from nunatak_server.telemetry.logs import fields, leave_out_places, logging_config, write_log
from nunatak_server.telemetry.tracing import Tracing, find_tracing

OBJECTS_PER_REQUEST: Final = 500
"""More than are alive while one waits: about 215 for one text and one task, and its connection."""
MIN_OBJECTS, MAX_OBJECTS = 100_000, 5_000_000
"""A short queue is no reason to look often, a long one none to let cycles fill the memory."""
GENERATIONS: Final = (4, 4)
"""After so many collections of one generation, one of the next."""


def collect_rarely(*, max_requests: int) -> None:
    """Leave out what is loaded, and begin no collection because a queue of so many requests fills.

    `MIN_OBJECTS` to `MAX_OBJECTS` objects in cycles may wait to be found.
    """
    gc.collect()
    # Those of torch and the backbone are hundreds of thousands, and they stay anyway.
    gc.freeze()
    num_objects = min(MAX_OBJECTS, max(MIN_OBJECTS, max_requests * OBJECTS_PER_REQUEST))
    gc.set_threshold(num_objects, *GENERATIONS)


START_AGAIN: Final = 75
"""The exit status after `EngineFailedError` (`EX_TEMPFAIL`)."""
TICK_S: Final = 0.05
LAST_WORDS_S: Final = 2
"""Time to say of requests that the grace did not suffice, before the transport cuts them off."""

logger = logging.getLogger(__name__)


def serve(
    settings: ServerSettings,
    *,
    announce: Callable[[str], None] | None = None,
    origins: Mapping[str, Origin] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are then answered within the grace time.

    `announce` is given the address once requests are taken; the default prints a line. `origins`
    tells where each setting comes from, for the log. The backbone is loaded before the port is
    opened. After SIGTERM the process ends by it; after SIGINT this returns.

    Raises:
        InvalidSettingsError: it would be open to other machines, or its batches are too small.
        KeyFileError: the file of API keys cannot be read.
        ModelError: the backbone cannot be loaded.
        RegistryError: the registry cannot be opened.
        EngineFailedError: the device was lost, or registry or keys can be followed no more; the
            process should be started again.
    """
    # The tokenizer's own threads would take the cores from the forward pass, for a few short texts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    check_exposure(settings)
    # Each counter would have a second line in every scrape, which nobody reads.
    disable_created_metrics()
    leave_out_places()
    tracing = find_tracing()
    backbone = load_serving_backbone(settings)
    # The transport would report what fails while the application starts in its own way.
    settings.batch_limits(longest_row_tokens=backbone.config.max_tokens)
    with Registry.open(settings.registry) as registry:
        server = DrainingServer(
            settings,
            backbone=backbone,
            registry=registry,
            announce=partial(
                begin,
                max_requests=settings.max_queued_requests,
                announce=announce or _print_address,
            ),
            tracing=tracing,
        )
        _log_configuration(Configuration(settings=settings, origins=origins or {}))
        try:
            server.run()
        except KeyboardInterrupt:
            return
    if server.failure is not None:
        raise server.failure


class DrainingServer(uvicorn.Server):
    """A uvicorn server that tells when it is ready, and refuses new requests when it is to end."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        backbone: Backbone,
        registry: Registry,
        announce: Callable[[str], None],
        tracing: Tracing | None = None,
    ) -> None:
        self.failure: EngineFailedError | None = None
        self._delay_is_over = False
        self._announce = announce
        self._drain_delay_s = settings.drain_delay_s
        self._grace_s = settings.grace_s
        self._app = create_app(
            settings, backbone=backbone, registry=registry, on_fatal=self._fail, tracing=tracing
        )
        super().__init__(_config(self._app, settings))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, open the port, and announce the address."""
        await super().startup(sockets)
        if self.started and self.failure is None:
            self._announce(_address(self.servers[0].sockets[0]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say 503 at /readyz from the moment of the signal; a second signal ends the delay."""
        runtime = self._runtime
        if runtime is not None and self._drain_delay_s and not self.should_exit:
            runtime.announce_drain()
        elif runtime is not None:
            runtime.begin_drain()
        self._delay_is_over |= self.should_exit
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Serve until told to end, and then as long as balancers may need to notice."""
        await super().main_loop()
        runtime = self._runtime
        if runtime is None or self.failure is not None:
            return
        ends_at = time.monotonic() + self._drain_delay_s
        # Polled, for a signal handler wakes no event loop.
        while self._is_leaving and time.monotonic() < ends_at:  # noqa: ASYNC110 - see above
            await asyncio.sleep(TICK_S)
        runtime.begin_drain()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Write the log to its end before the process ends by the signal, which runs no code."""
        with super().capture_signals():
            try:
                yield
            finally:
                write_log()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what is in flight be answered within the grace time, and end the rest."""
        giving_up = asyncio.get_running_loop().call_later(self._grace_s, self._give_up)
        try:
            await super().shutdown(sockets)
        finally:
            giving_up.cancel()

    def _give_up(self) -> None:
        connections = list(self.server_state.connections)
        if connections:
            logger.warning("the grace time is over: %d connections are ended", len(connections))
        for connection in connections:
            if isinstance(connection, BoundedProtocol):
                connection.end()

    @property
    def _is_leaving(self) -> bool:
        return not self._delay_is_over and self.failure is None

    @property
    def _runtime(self) -> Runtime | None:
        return getattr(self._app.state, "runtime", None)

    def _fail(self, error: EngineFailedError) -> None:
        self.failure = error
        self.should_exit = True


def _config(app: Application, settings: ServerSettings) -> uvicorn.Config:
    protocol = bounded_protocol(
        receive_timeout_s=settings.receive_timeout_s,
        refusal_of=app.room.refusal_of,
        answer_unreadable=app.answer_unreadable,
    )
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        # Nobody reads what a proxy says of its caller.
        proxy_headers=False,
        log_config=logging_config(settings.log_format),
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.grace_s + LAST_WORDS_S,
    )


def _log_configuration(configuration: Configuration) -> None:
    shown = {name: f"{value} ({origin})" for name, value, origin in configuration.shown()}
    logger.info("configuration", extra=fields(**shown))
    unread = unread_variables(os.environ)
    if unread:
        logger.warning("no settings of the server: %s", ", ".join(unread))


def begin(address: str, *, max_requests: int, announce: Callable[[str], None]) -> None:
    """Put off garbage collection, as the queue may be long, then say that requests are taken."""
    collect_rarely(max_requests=max_requests)
    announce(address)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print_address(address: str) -> None:
    sys.stdout.write(f"Nunatak is ready on {address}\n")
    sys.stdout.flush()
