"""Writes the tables of docs/configuration.md from the server's settings.

`python docs/configuration.py docs/configuration.md` updates the page.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nunatak_cli.serving.serve import SECTIONS
from nunatak_server.configuration import PREFIX
from nunatak_server.settings import ServerSettings

Schema = Mapping[str, Any]

BEGIN: Final = "<!-- Written by `make configuration` from the settings; do not edit it here. -->"
END: Final = "<!-- Until here. -->"
HEADER: Final = "| variable | flag | default | values | meaning |\n|---|---|---|---|---|\n"


def with_settings(page: str) -> str:
    """Return the page with up-to-date tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{''.join(_rows())}\n{END}{after}"


def _rows() -> Iterator[str]:
    schema = ServerSettings.model_json_schema()
    for name, described in schema["properties"].items():
        if name in SECTIONS:
            yield f"\n## {SECTIONS[name]}\n\n{HEADER}"
        cells = (
            f"`{PREFIX}{name.upper()}`",
            f"`--{name.replace('_', '-')}`",
            _default(described),
            _values(described, schema["$defs"]),
            described["description"],
        )
        yield f"| {' | '.join(cells)} |\n"


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
