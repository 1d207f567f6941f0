"""The client reads what the server answers: field by field, level by level."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from nunatak_client import results
from nunatak_server.http import schemas

PAIRS: tuple[tuple[type[BaseModel], type[BaseModel]], ...] = (
    (results.AliasChange, schemas.AliasResponse),
    (results.CandidateChange, schemas.CandidateResponse),
    (results.Eviction, schemas.EvictResponse),
    (results.MemoryReport, schemas.MemoryResponse),
    (results.Residency, schemas.PreloadResponse),
    (results.ServerInfo, schemas.InfoResponse),
    (results.ShadowReport, schemas.ShadowResponse),
    (results.TaskDetail, schemas.TaskResponse),
    (results.TaskSummary, schemas.TaskSummaryResponse),
    (results.Unpinning, schemas.UnpinResponse),
)
FREE_FORM = {("manifest",)}
"""Given on as they are; the client knows no manifest."""

Field = tuple[str, ...]
Schema = Mapping[str, Any]


@pytest.mark.parametrize(("client", "server"), PAIRS, ids=[client.__name__ for client, _ in PAIRS])
def test_the_client_has_every_field_of_the_server_and_no_other(
    client: type[BaseModel], server: type[BaseModel]
) -> None:
    assert fields(client).keys() == fields(server).keys()


@pytest.mark.parametrize(("client", "server"), PAIRS, ids=[client.__name__ for client, _ in PAIRS])
def test_the_client_takes_null_wherever_the_server_may_say_it(
    client: type[BaseModel], server: type[BaseModel]
) -> None:
    taken = {field for field, is_nullable in fields(client).items() if is_nullable}
    said = {field for field, is_nullable in fields(server).items() if is_nullable}

    assert said <= taken


def fields(model: type[BaseModel]) -> dict[Field, bool]:
    """Whether each field may be null, by its path; those within lists and tables included."""
    schema = model.model_json_schema(mode="serialization")
    return dict(_walk(schema, schema.get("$defs", {}), ()))


def _walk(
    schema: Schema, known: Mapping[str, Schema], place: Field
) -> Iterator[tuple[Field, bool]]:
    for name, value in schema.get("properties", {}).items():
        field = (*place, name)
        shapes = list(_shapes(value, known))
        yield field, any(shape.get("type") == "null" for shape in shapes)
        for shape in shapes if field not in FREE_FORM else ():
            yield from _walk(shape, known, field)


def _shapes(schema: Schema, known: Mapping[str, Schema]) -> Iterator[Schema]:
    """What a value may be, references resolved, and for a list what its items may be."""
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    yield schema
    for inner in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
        yield from _shapes(inner, known)
