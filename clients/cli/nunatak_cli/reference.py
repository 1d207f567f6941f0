"""Writes the tables of docs/configuration.md from the server's settings and the options of `serve`.

`python -m nunatak_cli.reference docs/configuration.md` updates the page.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from typer.core import TyperGroup
from typer.main import get_command

from nunatak_cli.main import app
from nunatak_server.settings import PREFIX, ServerSettings

Schema = Mapping[str, Any]

BEGIN: Final = "<!-- Written by `make configuration` from the settings; do not edit it here. -->"
END: Final = "<!-- Until here. -->"
SECTIONS: Final[Mapping[str, str]] = {
    "registry": "Registry and backbone",
    "host": "Address and access",
    "device": "Device",
    "max_body_bytes": "Limits of one request",
    "max_batch_tokens": "Batches",
    "trunk_cache_bytes": "Memory",
    "max_queued_requests": "The queue",
    "registry_poll_ms": "Versions",
    "tokenizer_threads": "Threads",
    "keep_alive_s": "Connections and shutdown",
    "log_format": "Logs",
}
"""Title of each section, by the first setting of the section."""
RENAMED: Final[Mapping[str | None, str]] = {"pin": "pins"}
"""The setting of each option that has another name: `--pin` adds one value to `pins`."""
HEADER: Final = "| variable | flag | default | values | meaning |\n|---|---|---|---|---|\n"


def with_settings(page: str) -> str:
    """Return the page with up-to-date tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{''.join(_rows())}\n{END}{after}"


def _rows() -> Iterator[str]:
    schema = ServerSettings.model_json_schema()
    flags = _flags()
    for name, described in schema["properties"].items():
        if name in SECTIONS:
            yield f"\n## {SECTIONS[name]}\n\n{HEADER}"
        cells = (
            f"`{PREFIX}{name.upper()}`",
            f"`{flags[name]}`" if name in flags else "",
            _default(described),
            _values(described, schema["$defs"]),
            described["description"],
        )
        yield f"| {' | '.join(cells)} |\n"


def _flags() -> dict[str, str]:
    """Return the flag of each setting that has its own option."""
    root = get_command(app)
    options = root.commands["serve"].params if isinstance(root, TyperGroup) else []
    named = {RENAMED.get(option.name, option.name): option.opts[0] for option in options}
    return {name: named[name] for name in ServerSettings.model_fields if name in named}


def _default(described: Schema) -> str:
    match described.get("default"):
        case None | "":
            return "not set"
        case bool() as flag:
            return str(flag).lower()
        case value:
            return f"`{value}`"


def _values(described: Schema, shared: Schema) -> str:
    """Return the values that a setting accepts: names, or the ends of a range."""
    if "$ref" in described:
        names = shared[described["$ref"].rpartition("/")[2]]["enum"]
        return ", ".join(f"`{name}`" for name in names)
    schema = described["anyOf"][0] if "anyOf" in described else described
    match schema:
        case {"type": "boolean"}:
            return "`true`, `false`"
        case {"minimum": low, "maximum": high}:
            return f"{low:,} to {high:,}"
        case {"exclusiveMinimum": low, "exclusiveMaximum": high}:
            return f"above {low}, below {high}"
        case {"minimum": low}:
            return f"from {low}"
        case _:
            return "text"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_settings(page.read_text(encoding="utf-8")), encoding="utf-8")
