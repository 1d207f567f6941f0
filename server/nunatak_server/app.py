"""The application: puts the runtime behind HTTP, and starts and stops it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from nunatak_model import Backbone
from nunatak_registry import Registry
from nunatak_server.api import admin, operations, pages, routes
from nunatak_server.api.context import RequestIdMiddleware
from nunatak_server.api.errors import install_error_handlers
from nunatak_server.api.neighbours import open_inference, openai, tei
from nunatak_server.errors import EngineFailedError
from nunatak_server.runtime import Runtime, load_serving_backbone
from nunatak_server.settings import ServerSettings


def create_app(
    settings: ServerSettings,
    *,
    backbone: Backbone | None = None,
    registry: Registry | None = None,
    on_fatal: Callable[[EngineFailedError], None] | None = None,
) -> FastAPI:
    """Put an application together; its lifespan starts and stops everything behind it.

    What is not given is opened from the settings, and closed again at the end. `on_fatal` is
    called on the event loop when only a new process can serve again; by then the application
    answers 503.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            opened = registry or stack.enter_context(
                await asyncio.to_thread(Registry.open, settings.registry)
            )
            runtime = Runtime(
                settings=settings,
                backbone=backbone or await asyncio.to_thread(load_serving_backbone, settings),
                registry=opened,
                on_fatal=on_fatal or _leave_to_supervisor,
            )
            stack.push_async_callback(runtime.aclose)
            await runtime.start()
            app.state.runtime = runtime
            yield

    app = FastAPI(
        title="Nunatak",
        summary="Many text tasks from one frozen transformer encoder.",
        version=version("nunatak"),
        lifespan=lifespan,
        # Both of the framework's pages load scripts from elsewhere; `pages` has one that does not.
        docs_url=None,
        redoc_url=None,
        # A redirect would be built from the Host header, which the caller chooses.
        redirect_slashes=False,
    )
    app.state.settings = settings
    for module in (routes, admin, operations, pages, tei, openai, open_inference):
        app.include_router(module.router)
    install_error_handlers(app)
    app.add_middleware(RequestIdMiddleware)
    return app


def _leave_to_supervisor(_: EngineFailedError) -> None:
    """Do nothing more: the engine has logged it, and readiness has turned to 503."""
