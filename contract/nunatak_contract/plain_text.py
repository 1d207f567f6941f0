r"""Free text of artefacts, files and servers, made safe to print.

The author of a label, a note or an error message may have put control characters into it. Control
characters move a terminal's cursor, change its colours and title, end a line of a log, or reverse
the order of the characters. Printed text spells them out instead, as `\x1b` or `\u202e`.
"""

import re

_LINE_END = "\n"
_CONTROLS = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1, with tabs and line ends
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # lone surrogates, which no output can encode
    "]"
)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 row` or `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float, *, digits: int = 1) -> str:
    """Return a share such as `99.9%`. Less than the whole is never rounded up to the whole."""
    shown = share if share >= 1 else min(share, 1 - 10 ** -(digits + 2))
    return f"{shown:.{digits}%}"


def visible(text: str) -> str:
    """Spell out every control character, line ends included, so that the result is one line."""
    return _CONTROLS.sub(_spelt, text)


def visible_lines(text: str) -> str:
    """Spell out every control character except line ends."""
    return _LINE_END.join(map(visible, text.split(_LINE_END)))


def visible_json(document: str) -> str:
    """Spell out every control character of a JSON document, which keeps its values.

    Only strings can hold such characters; JSON itself has line ends between values, which stay.
    """
    return _CONTROLS.sub(_spelt_in_json, document)


def _spelt(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


def _spelt_in_json(found: re.Match[str]) -> str:
    character = found.group()
    return character if character == _LINE_END else f"\\u{ord(character):04x}"
