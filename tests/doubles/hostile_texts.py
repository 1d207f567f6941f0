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


class _Answering(Exchange):
    def reply(self) -> None:
        self.body()
        self._send(200, "application/x-ndjson", _ANSWERS)

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
