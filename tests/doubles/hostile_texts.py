"""Texts with terminal commands, servers that send such texts, and the commands a terminal obeys."""

import json
import re
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager

from pydantic import JsonValue

from doubles.listeners import Exchange, listening

CONTROLS = (
    "\x1b[2J\x1b[31m\x1b]0;title\x07\x1b]8;;https:evil\x1b\\\x9b5m\x85\r\x08\x0b\x00\x7f\t"
    "\u202e\u2066\u200e\u200f\u061c\u2028\u2029"
)
MARKUP = "evil[b] [red]y[/] [link=https:evil]z[/link] :smile:"
"""Text that rich reads as styles, a link and a picture; commands must show its first word
unchanged."""
HOSTILE = f"{MARKUP}{CONTROLS}"
HOSTILE_FILE_NAME = HOSTILE.translate({0: None, ord("/"): None})
"""Without the two characters that no file name may hold."""
_DIRECTION_MARKS = {"\u200e", "\u200f", "\u061c"}
_DIRECTIONS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
_STYLES = re.compile(r"\x1b\[[0-9;]*m")
"""rich's own commands for styles; `HOSTILE` has more commands."""


def is_obeyed(character: str) -> bool:
    """Whether a terminal obeys a character instead of showing it, by Unicode's classes."""
    return (
        unicodedata.category(character) in {"Cc", "Zl", "Zp", "Cs"}
        or unicodedata.bidirectional(character) in _DIRECTIONS
        or character in _DIRECTION_MARKS
    )


def obeyed(output: str, *, has_styles: bool = False) -> set[str]:
    """Return the characters of an output that a terminal obeys, except line ends and styles."""
    shown = _STYLES.sub("", output) if has_styles else output
    return {character for character in shown if is_obeyed(character)} - {"\n"}


_RESIDENCY: JsonValue = {"task": HOSTILE, "version": 1, "resident": True, "bytes": 1}
_VERSIONS: JsonValue = {"task": HOSTILE, "versions": [1]}
_MEMORY: JsonValue = {
    "backbone": {"name": HOSTILE, "digest": HOSTILE, "dtype": HOSTILE, "bytes": 1, "parameters": 1},
    "tasks": [{"task": HOSTILE, "version": 1, "method": HOSTILE, "bytes": 1, "parameters": 1}],
    "shared_bytes": 1,
    "dedicated_bytes": 1,
    "saved_share": 0.5,
    "process": {"rss_bytes": 1},
}
_SHADOW: JsonValue = {
    "task": HOSTILE,
    "alias": HOSTILE,
    "version": 1,
    "shadow_version": 2,
    "share": 0.5,
    "compared": 1,
    "errors": 0,
    "dropped": 0,
}
_ANSWERS: list[JsonValue] = [
    {
        "reference": HOSTILE,
        "task": HOSTILE,
        "version": 3,
        "outputs": [{"label": HOSTILE, "score": 0.9}, {"label": MARKUP, "score": 0.1}],
    },
    {
        "reference": HOSTILE,
        "error": {"code": HOSTILE, "status": 404, "title": HOSTILE, "detail": HOSTILE},
    },
]
_BY_LAST_PART: dict[str, JsonValue] = {
    "preload": _RESIDENCY,
    "pin": _RESIDENCY,
    "unpin": _VERSIONS,
    "evict": _VERSIONS,
    "memory": _MEMORY,
    "shadow": _SHADOW,
}


class _Answering(Exchange):
    def reply(self) -> None:
        self.body()
        last_part = self.path.partition("?")[0].rpartition("/")[2]
        if last_part != "predict":
            self._send(200, "application/json", [_BY_LAST_PART[last_part]])
        elif "ndjson" in self.headers.get("accept", ""):
            self._send(200, "application/x-ndjson", _ANSWERS)
        else:
            self._send(200, "application/json", [{"results": _ANSWERS}])

    def _send(self, status: int, kind: str, documents: list[JsonValue]) -> None:
        content = b"\n".join(json.dumps(document).encode() for document in documents)
        self.answer(status, content, {"content-type": kind})


class _Refusing(_Answering):
    def reply(self) -> None:
        self.body()
        problem: JsonValue = {"code": HOSTILE, "title": HOSTILE, "status": 409, "detail": HOSTILE}
        self._send(409, "application/problem+json", [problem])


@contextmanager
def hostile_server(*, refuses: bool) -> Generator[str]:
    """Serve hostile answers, or refuse everything in hostile words; yields the address."""
    with listening(_Refusing if refuses else _Answering) as address:
        yield address
