"""Draws how long a stream of verdicts holds text back, by the length of the windows.

`python docs/streams.py docs/images/streams.svg` writes the picture. A word counts as 1.3 tokens, as
in English text. Windows share half of their tokens, at most 128, and hold two special tokens.
"""

import sys
from pathlib import Path
from typing import Final

WORDS: Final = 400
TOKENS_A_WORD: Final = 1.3
LENGTHS: Final = {32: "#0a7", 64: "#06c", 128: "#c60", 256: "#a07"}
WIDTH, HEIGHT, MARGIN = 640, 360, 48


def released(arrived: int, max_length: int) -> int:
    """Return the words that are released when so many have arrived and the text goes on."""
    room = max_length - 2
    step = room - min(128, max_length // 2, room // 2)
    num_closed = max(0, int((arrived * TOKENS_A_WORD - room) // step) + 1)
    return int(num_closed * step / TOKENS_A_WORD)


def line(values: list[int], colour: str, *, dashes: str = "none") -> str:
    """Return a line over the words that have arrived."""
    points = " ".join(f"{x(place)},{y(value)}" for place, value in enumerate(values))
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dashes}"/>'
    )


def x(words: int) -> int:
    """Return the place of a number of words from the left."""
    return MARGIN + words * (WIDTH - 2 * MARGIN) // WORDS


def y(words: int) -> int:
    """Return the place of a number of words from the top."""
    return HEIGHT - MARGIN - words * (HEIGHT - 2 * MARGIN) // WORDS


def picture() -> str:
    """Return the picture as SVG."""
    parts = [line(list(range(WORDS + 1)), "#888", dashes="4 4")]
    for number, (length, colour) in enumerate(LENGTHS.items()):
        parts.append(line([released(it, length) for it in range(WORDS + 1)], colour))
        parts.append(
            f'<text x="{MARGIN + 12}" y="{MARGIN + 18 * number}" fill="{colour}">'
            f"windows of {length} tokens</text>"
        )
    for words in range(0, WORDS + 1, 100):
        parts.append(f'<text x="{x(words) - 8}" y="{HEIGHT - MARGIN + 18}">{words}</text>')
        parts.append(f'<text x="8" y="{y(words) + 4}">{words}</text>')
    parts.append(f'<text x="{WIDTH // 2 - 60}" y="{HEIGHT - 8}">words that have arrived</text>')
    parts.append('<text x="8" y="18">words that are released; dashed: all of them</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" '
        f'fill="white"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), "utf-8")
