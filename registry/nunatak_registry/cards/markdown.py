"""Tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table, a line for each; cells hold no line break and no bare `|`."""
    lines = (f"| {' | '.join(line)} |\n" for line in (header, *rows))
    return next(lines) + f"|{'---|' * len(header)}\n" + "".join(lines)
