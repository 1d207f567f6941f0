"""The permission that a route needs, by its dependencies."""

from typing import Any

import pytest
from fastapi import APIRouter, Depends, Response

from nunatak_server.access.keys import Scope
from nunatak_server.http.access import OPERATORS, PUBLIC, Access, needs
from nunatak_server.http.middleware import StrictRoute


async def other() -> None:
    """A dependency without any relation to access."""


async def endpoint() -> Response:
    return Response()


def route_with(dependencies: list[Any], *, of_router: list[Any] | None = None) -> StrictRoute:
    router = APIRouter(route_class=StrictRoute, dependencies=of_router)
    router.post("/", dependencies=dependencies)(endpoint)
    (route,) = router.routes
    assert isinstance(route, StrictRoute)
    return route


def test_a_route_that_names_no_scope_is_for_operators_of_the_whole_server() -> None:
    assert route_with([]).needed == OPERATORS
    assert route_with([Depends(other)]).needed == OPERATORS
    assert Access(scope=Scope.ADMIN, spans_tasks=True) == OPERATORS


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("spans_tasks", [False, True])
def test_a_route_asks_for_the_scope_that_it_names(scope: Scope, spans_tasks: bool) -> None:  # noqa: FBT001 - a case
    named = needs(scope, spans_tasks=spans_tasks)
    wanted = Access(scope=scope, spans_tasks=spans_tasks)

    assert route_with([named]).needed == wanted
    assert route_with([Depends(other)], of_router=[named]).needed == wanted


def test_a_public_route_says_so() -> None:
    assert route_with([PUBLIC]).needed is None


def test_a_route_with_several_scopes_is_refused_when_it_is_defined() -> None:
    with pytest.raises(TypeError, match="expected one scope for a route"):
        route_with([PUBLIC], of_router=[needs(Scope.READ)])
