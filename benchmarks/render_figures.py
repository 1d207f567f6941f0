"""Renders the figures of docs/results/figures.jsonl as the pages of docs/results."""

from pathlib import Path

import render_registry
from recording import FIGURES, Figure, latest
from render_forward import PREFIX as FORWARD
from render_forward import write_forward

PAGE = FIGURES.parent / "README.md"
HEAD = """# Results

Measured figures, the newest of each identifier. Every line of `figures.jsonl` holds the command,
commit, date, hardware and package versions it was measured with; this table is made from it by
`make figures`. Figures of the forward without a goal stand in [forward.md](forward.md) alone; why
those of the server miss is in [server.md](server.md).

| figure | median | first to last decile (runs) | goal | met | command | hardware, date |
|---|---|---|---|---|---|---|
"""
NOTES = "\n## Goals missed\n\n"


def main() -> None:
    """Write the table of all, and the pages of their own."""
    figures = latest()
    PAGE.write_text(page(figures), encoding="utf-8")
    render_registry.write_page()
    write_forward(figures)
    print(f"{len(figures)} figures in {PAGE.relative_to(Path.cwd())}")


def page(figures: dict[str, Figure]) -> str:
    """The whole page."""
    ordered = [figures[name] for name in sorted(figures) if not is_detail(figures[name])]
    missed = [figure for figure in ordered if figure.met is False]
    notes = "".join(f"- `{it.id}`: {_why(it)}\n" for it in missed)
    return HEAD + "".join(map(row, ordered)) + (NOTES + notes if missed else "")


def _why(figure: Figure) -> str:
    if figure.reason is None and figure.id.startswith(FORWARD):
        return "[forward.md](forward.md) says what is known of it"
    return figure.reason or "reason not found yet"


def is_detail(figure: Figure) -> bool:
    """Whether a figure is there for the pages of its benchmark alone."""
    return figure.id.startswith(FORWARD) and figure.goal is None


def row(figure: Figure) -> str:
    """One line of the table."""
    met = {None: "", True: "yes", False: "no"}[figure.met]
    return (
        f"| `{figure.id}` | {figure.value:g} {figure.unit} | {figure.low:g} to {figure.high:g} "
        f"({figure.runs}) | {figure.goal or ''} | {met} | `{figure.command}` "
        f"| {figure.hardware}, {figure.date} |\n"
    )


if __name__ == "__main__":
    main()
