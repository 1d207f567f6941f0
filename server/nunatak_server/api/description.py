"""Routes that describe the API: its OpenAPI schema, and a page that shows it."""

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

from nunatak_server.api.access import access_to
from nunatak_server.api.limits import StrictRoute
from nunatak_server.api.replies import reply

SCHEMA_PATH: Final = "/openapi.json"
KEY_SCHEME: Final = "key"


class DescribedApp(FastAPI):
    """An application whose schema says what each route needs; made once, at the first request."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI schema."""
        if self.openapi_schema is None:
            self.openapi_schema = with_security(super().openapi())
        return self.openapi_schema


router = APIRouter(route_class=StrictRoute, include_in_schema=False)


@router.get(SCHEMA_PATH)
async def schema(request: Request) -> Response:
    """Give the OpenAPI schema."""
    return reply(request.app.openapi())


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Show the schema; the page reads it, so it is of use where no keys are asked for."""
    return get_swagger_ui_html(openapi_url=SCHEMA_PATH, title=request.app.title)


def with_security(description: dict[str, Any]) -> dict[str, Any]:
    """Add to a schema which scope each route needs; servers without keys ask for none."""
    components = description.get("components", {})
    return {
        **description,
        "components": {
            **components,
            "securitySchemes": {KEY_SCHEME: {"type": "http", "scheme": "bearer"}},
        },
        "paths": {
            path: {method: _secured(path, method, operation) for method, operation in item.items()}
            for path, item in description["paths"].items()
        },
    }


def _secured(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    needed = access_to({method.upper()}, path)
    if needed is None:
        return operation
    return {**operation, "security": [{KEY_SCHEME: [needed.scope.value]}, {}]}
