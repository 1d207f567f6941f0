"""Renders the figures of `make torture` as docs/results/registry.md."""

from pathlib import Path

from benchmarks.harness.recording import FIGURES, Figure, latest
from nunatak_registry.cards import markdown_table

PAGE = FIGURES.parent / "registry.md"
TEMPLATE = Path(__file__).with_name("page.md")
PREFIX = "registry."
COLUMNS = ("figure", "value", "goal", "met", "date")


def write_page() -> None:
    """Write the page from the newest figures of the registry."""
    figures = [figure for figure in latest().values() if figure.id.startswith(PREFIX)]
    rows = (_cells(figure) for figure in sorted(figures, key=lambda figure: figure.id))
    page = TEMPLATE.read_text(encoding="utf-8").format(
        table=markdown_table(COLUMNS, rows),
        hardware="; ".join(sorted({figure.hardware for figure in figures})),
    )
    PAGE.write_text(page, encoding="utf-8")


def _cells(figure: Figure) -> tuple[str, ...]:
    met = {None: "", True: "yes", False: f"no: {figure.reason}"}[figure.met]
    value = f"{figure.value:g} {figure.unit}"
    return f"`{figure.id}`", value, figure.goal or "", met, figure.date


if __name__ == "__main__":
    write_page()
