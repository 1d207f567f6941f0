"""What describes the API: its OpenAPI schema, which the page at `/docs` shows."""

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response

from nunatak_registry.names import NAME_PATTERN
from nunatak_server.api.access import access_to
from nunatak_server.api.errors import PROBLEM_TYPE
from nunatak_server.api.limits import StrictRoute
from nunatak_server.api.replies import reply

SCHEMA_PATH: Final = "/openapi.json"
KEY_SCHEME: Final = "key"
PROBLEM_SCHEMA: Final = {"$ref": "#/components/schemas/Problem"}
_NAME: Final = NAME_PATTERN.strip("^$")
PATTERNS: Final = {
    "task": f"^{_NAME}(?:@{_NAME})?$",
    "alias": NAME_PATTERN,
    "version": "^[1-9][0-9]{0,9}$",
}
"""Grammar of the parameters that are names, wherever a route has them."""


class DescribedApp(FastAPI):
    """An application whose schema says what each route needs; made once, at the first request."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI schema."""
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi())
        return self.openapi_schema


router = APIRouter(route_class=StrictRoute, include_in_schema=False)


@router.get(SCHEMA_PATH)
async def schema(request: Request) -> Response:
    """Give the OpenAPI schema."""
    return reply(request.app.openapi())


def completed(description: dict[str, Any]) -> dict[str, Any]:
    """Add what the framework does not see: scopes, the type of problems, the grammar of names.

    Servers without keys ask for no scope.
    """
    components = description.get("components", {})
    return {
        **description,
        "components": {
            **components,
            "securitySchemes": {KEY_SCHEME: {"type": "http", "scheme": "bearer"}},
        },
        "paths": {
            path: {
                method: _completed(path, method, operation) for method, operation in item.items()
            }
            for path, item in description["paths"].items()
        },
    }


def _completed(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    needed = access_to({method.upper()}, path)
    security = [] if needed is None else [{KEY_SCHEME: [needed.scope.value]}, {}]
    parameters = [_named(parameter) for parameter in operation.get("parameters", [])]
    responses = {status: _typed(answer) for status, answer in operation["responses"].items()}
    return {
        **operation,
        "security": security,
        "parameters": parameters,
        "responses": responses,
    }


def _named(parameter: dict[str, Any]) -> dict[str, Any]:
    pattern = PATTERNS.get(parameter["name"])
    schema = parameter["schema"]
    if pattern is not None:
        schema = {"type": "string", "pattern": pattern}
    elif "anyOf" in schema:
        # One that is left out is null to Python, but nobody can send null outside of a body.
        schema = next(one for one in schema["anyOf"] if one != {"type": "null"})
    return {**parameter, "schema": schema}


def _typed(answer: dict[str, Any]) -> dict[str, Any]:
    """Give the answer of a failure its own media type."""
    content = answer.get("content", {})
    as_json = content.get("application/json", {})
    if as_json.get("schema") != PROBLEM_SCHEMA:
        return answer
    return {**answer, "content": {PROBLEM_TYPE: as_json}}
