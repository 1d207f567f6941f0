"""The application: puts the runtime behind HTTP, and starts and stops it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from nunatak_contract.errors import NunatakError, needs_extra
from nunatak_registry import Registry
from nunatak_server import VERSION
from nunatak_server.access.audit import AuditLog
from nunatak_server.access.keys import authenticator_for, check_exposure
from nunatak_server.compat import (
    decisions,
    gateways,
    hugging_face,
    open_inference,
    openai,
    semantic_router,
    vllm,
)
from nunatak_server.decisions.upstream import Upstream
from nunatak_server.engine.backbones import Backbones, load_on_own_thread
from nunatak_server.errors import EngineFailedError
from nunatak_server.http import admin, pages, routes, streams
from nunatak_server.http.access import PREDICT, AppState
from nunatak_server.http.middleware import (
    ObservingMiddleware,
    StrictRoute,
    answer_early,
    refusal_of,
)
from nunatak_server.http.pages import completed
from nunatak_server.http.problems import ANSWERS, problem_response
from nunatak_server.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, RefusalOf
from nunatak_server.runtime import Runtime
from nunatak_server.settings import ServerSettings

if TYPE_CHECKING:
    from nunatak_server.telemetry.spans import SpanTracing


class Application(FastAPI):
    state: AppState  # pyrefly: ignore[bad-override] - the framework accepts any type

    def __init__(self, state: AppState, *, routes: Sequence[BaseRoute], **options: Any) -> None:  # noqa: ANN401 - options of the base class
        layers = [Middleware(ObservingMiddleware)]
        if origins := state.settings.allowed_origins():
            # No credentials: a page sends its key itself, and browsers add nothing to a request.
            shared = Middleware(
                CORSMiddleware,
                allow_origins=sorted(origins),
                allow_methods=["GET", "POST", "PUT"],
                allow_headers=["*"],
                expose_headers=["*"],
            )
            layers.append(shared)
        super().__init__(
            routes=list(routes), middleware=layers, exception_handlers=ANSWERS, **options
        )
        self.state = state
        asked = [it for it in routes if isinstance(it, StrictRoute) and it.needed == PREDICT]
        self.refusal_of: RefusalOf = partial(refusal_of, self, asked)
        """Refuses predictions by their heads; the transport calls it before all layers."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi())
        return self.openapi_schema

    def answer_unreadable(self) -> Response:
        """Answer, for the transport, bytes that are no request. The answer repeats none of them."""
        scope: Scope = {"type": "http", "app": self, "method": "", "headers": []}
        error = NunatakError("invalid_http", max_headers=MAX_HEADERS, max_head_bytes=MAX_HEAD_BYTES)
        return answer_early(scope, partial(problem_response, error=error))


def create_app(
    settings: ServerSettings,
    *,
    backbones: Backbones | None = None,
    registry: Registry | None = None,
    on_fatal: Callable[[EngineFailedError], None] = lambda _: None,
    tracing: "SpanTracing | None" = None,
) -> Application:
    """Build an application. Its lifespan starts and stops all parts.

    Parts that are not given are opened from the settings, and closed at the end. `on_fatal` is
    called on the event loop when only a new process can serve again. From then on the application
    answers 503.
    """
    check_exposure(settings)
    keys_file = settings.api_keys_file
    authenticator = authenticator_for(keys_file)
    if settings.oidc_issuer:
        with needs_extra("oidc"):
            from nunatak_server.access.tokens import TokenAuthenticator  # noqa: PLC0415
        authenticator = TokenAuthenticator(settings, authenticator if keys_file else None)
    audit = AuditLog(settings.audit_log.absolute()) if settings.audit_log else None
    upstream = Upstream(settings) if settings.decisions_upstream else None

    @asynccontextmanager
    async def lifespan(app: Application) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            if audit is not None:
                stack.callback(audit.close)
            opened = registry or stack.enter_context(
                await asyncio.to_thread(Registry.open, settings.registry)
            )
            runtime = Runtime(
                settings=settings,
                backbones=backbones or await asyncio.to_thread(load_on_own_thread, settings),
                registry=opened,
                on_fatal=on_fatal,
                weights=authenticator.weights,
                tracing=tracing,
                upstream=upstream,
            )
            stack.push_async_callback(runtime.aclose)
            await runtime.start()
            app.state.runtime = runtime
            following = asyncio.create_task(authenticator.run(), name="access")
            runtime.depend_on(following)
            stack.callback(following.cancel)
            yield

    routers = (
        *(it.router for it in (routes, streams, admin, pages)),
        *(hugging_face.tei, openai.router),
        *(open_inference.router, open_inference.kserve_1),
        *(it.router for it in (vllm, hugging_face, semantic_router)),
        *(gateways.for_litellm, gateways.for_portkey, gateways.for_orchestrator),
        *(decisions.router, decisions.system_one),
    )
    found = list(chain.from_iterable(it.routes for it in routers))
    return Application(
        AppState(settings=settings, authenticator=authenticator, audit=audit),
        title="Nunatak",
        summary="Many text tasks from one frozen transformer encoder.",
        version=VERSION,
        lifespan=lifespan,
        # Included routers would match each request twice.
        routes=found,
        # The framework's routes ignore keys, and its pages load scripts from other sites.
        openapi_url=None,
        # A redirect would contain the Host header, which the caller chooses.
        redirect_slashes=False,
        # The framework's span would have the path, which the caller chooses; our span has the
        # template.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
