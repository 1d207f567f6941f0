"""Where results go: tables and JSON to standard output, remarks and errors to standard error."""

import json
from collections.abc import Mapping

from pydantic import JsonValue
from rich.console import Console


def console() -> Console:
    """Standard output; texts of users are shown as they are, never read as markup."""
    return Console(markup=False, highlight=False, emoji=False)


def error_console() -> Console:
    """Standard error."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def print_json(value: Mapping[str, JsonValue]) -> None:
    """Print one JSON document, indented, with nothing around it."""
    print(json.dumps(value, indent=2, ensure_ascii=False))  # noqa: T201 - rich would wrap lines


def print_json_line(value: Mapping[str, JsonValue]) -> None:
    """Print one JSON document on one line, at once also where the output is a pipe."""
    print(json.dumps(value, ensure_ascii=False), flush=True)  # noqa: T201 - rich would wrap lines


def print_text(value: str) -> None:
    """Print a text as it is."""
    print(value, end="")  # noqa: T201 - rich would wrap lines
