"""Serving: one process, one event loop, one engine thread, until a signal or a fatal error."""

import copy
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import LOGGING_CONFIG

from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.access.exposure import check_exposure
from nunatak_server.app import create_app
from nunatak_server.errors import EngineFailedError
from nunatak_server.private_logs import WithoutMessages
from nunatak_server.protocol import bounded_protocol
from nunatak_server.runtime import Runtime, load_serving_backbone
from nunatak_server.settings import ServerSettings


def serve(settings: ServerSettings, *, announce: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are then answered within the grace time.

    `announce` is given the address once requests are taken; the default prints a line. The
    backbone is loaded before the port is opened. After a signal the process ends by that signal.

    Raises:
        InvalidSettingsError: it would be open to other machines.
        KeyFileError: the file of API keys cannot be read.
        ModelError: the backbone cannot be loaded.
        RegistryError: the registry cannot be opened.
        EngineFailedError: the device was lost while serving; the process should be restarted.
    """
    # The tokenizer's own threads would take the cores from the forward pass, for a few short texts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    check_exposure(settings)
    backbone = load_serving_backbone(settings)
    with Registry.open(settings.registry) as registry:
        server = DrainingServer(
            settings, backbone=backbone, registry=registry, announce=announce or _print_address
        )
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
    ) -> None:
        self.failure: EngineFailedError | None = None
        self._announce = announce
        self._app = create_app(settings, backbone=backbone, registry=registry, on_fatal=self._fail)
        super().__init__(_config(self._app, settings))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, open the port, and announce the address."""
        await super().startup(sockets)
        if self.started:
            self._announce(_address(self.servers[0].sockets[0]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Refuse new requests from the moment of the signal."""
        runtime: Runtime | None = getattr(self._app.state, "runtime", None)
        if runtime is not None:
            runtime.begin_drain()
        super().handle_exit(sig, frame)

    def _fail(self, error: EngineFailedError) -> None:
        self.failure = error
        self.should_exit = True


def _config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=bounded_protocol(receive_timeout_s=settings.receive_timeout_s),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=logging_config(),
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.grace_s,
    )


def logging_config() -> dict[str, Any]:
    """Return how uvicorn and the server log; tracebacks come without messages of exceptions."""
    config = copy.deepcopy(LOGGING_CONFIG)
    config["filters"] = {"private": {"()": WithoutMessages}}
    for handler in config["handlers"].values():
        handler["filters"] = ["private"]
    config["loggers"]["nunatak_server"] = {"handlers": ["default"], "level": "INFO"}
    return config


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _print_address(address: str) -> None:
    sys.stdout.write(f"Nunatak is ready on {address}\n")
    sys.stdout.flush()
