"""The server's OpenAPI document: the file `docs/openapi.json`, and two pages of the site.

`python -m release.openapi` writes the file.
"""

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "openapi.json"
OWN_ROUTES = "Nunatak"


def document() -> dict[str, Any]:
    """Return the document of a server with the version of this checkout."""
    from nunatak_server.app import create_app  # noqa: PLC0415 - pages need only the file
    from nunatak_server.settings import ServerSettings  # noqa: PLC0415

    made = create_app(ServerSettings(registry="nowhere")).openapi()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {**made, "info": {**made["info"], "version": project["version"]}}


def text_of(made: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def routes_page(made: Mapping[str, Any]) -> str:
    """Return the page of all routes, in Markdown."""
    groups = defaultdict[str, list[str]](list)
    for path, item in made["paths"].items():
        for verb, operation in item.items():
            (group,) = operation.get("tags") or [OWN_ROUTES]
            groups[group].append("\n\n".join(_route(f"{verb.upper()} {path}", operation)))
    first = (
        "# Routes\n\nThis page is made from the [OpenAPI document](../openapi.json). Its shapes "
    )
    parts = [first + "are on [another page](shapes.md).\n[HTTP API](../http.md) explains the use."]
    for group, routes in groups.items():
        parts += [f"## {group}", *routes]
    return "\n\n".join(parts) + "\n"


def shapes_page(made: Mapping[str, Any]) -> str:
    """Return the page of all shapes, in Markdown."""
    parts = ["# Shapes\n\nThe bodies of the [routes](routes.md), by the names of the schemas."]
    for name, schema in made["components"]["schemas"].items():
        parts += [f"## {name}", *_described(schema)]
        if "properties" in schema:
            needed = schema.get("required", [])
            rows = [
                (f"`{field}`", _type(it), "yes" if field in needed else "", _about(it))
                for field, it in schema["properties"].items()
            ]
            parts.append(_table(("field", "type", "required", "about"), rows))
        else:
            parts.append(_type(schema))
    return "\n\n".join(parts) + "\n"


def _route(title: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{title}`"
    yield from _described(operation)
    if operation["security"]:
        yield f"Scope: {', '.join(f'`{it}`' for it in operation['security'][0]['key'])}"
    if operation["parameters"]:
        rows = [
            (f"`{it['name']}`", it["in"], _type(it["schema"]), _about(it))
            for it in operation["parameters"]
        ]
        yield _table(("parameter", "in", "type", "about"), rows)
    bodies = {"Request": operation.get("requestBody", {}), "Answer": _answer(operation)}
    for name, body in bodies.items():
        for media, content in body.get("content", {}).items():
            yield f"{name}: `{media}`, {_type(content.get('schema', {}))}"


def _answer(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    return operation["responses"].get("200", {})


def _described(schema: Mapping[str, Any]) -> Iterator[str]:
    if "description" in schema:
        yield schema["description"]


def _about(schema: Mapping[str, Any]) -> str:
    default = f"default `{json.dumps(schema['default'])}`" if "default" in schema else ""
    said = schema.get("description", "").replace("\n", " ").replace("|", "\\|")
    return "; ".join(it for it in (said, default) if it)


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type in words, with links to shapes."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](shapes.md#{name.lower()})"
        case {"anyOf": cases} | {"oneOf": cases}:
            return " or ".join(dict.fromkeys(map(_type, cases)))
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"enum": values}:
            return ", ".join(f"`{it}`" for it in values)
        case _:
            constant = schema.get("const")
            return str(schema.get("type", "any value")) if constant is None else f"`{constant}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    FILE.write_text(text_of(document()), encoding="utf-8")
